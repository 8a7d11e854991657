"""peers -- leanattn, other libraries' decode kernels and the pure-read limit, timed side by side on the same data in one process.

`python3 bench/peers --help` is the command. A module owns one noun:

    shapes        which decode steps are measured               data         the tensors of one of them, rotated so that L2 is cold
    c_header      ctypes structs read from the public C header  leanattn_c   the library through its C interface
    cuda_driver   NVRTC and the driver API through ctypes       read_limit   kernels that only read
    oracle        attention in FP64                             agreement    what counts as the same result
    system_*      one adapter a system                          timing       graphs, events, interleaved rounds
    measure       one shape, from data to samples               summary      medians, ratios, intervals
    report, plot  Markdown, SVG
"""
