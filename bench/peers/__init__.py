"""peers -- times leanattn, decode kernels of other libraries, and kernels that only read, on the same data in one process.

`python3 bench/peers --help` describes the command. Each module owns one noun:

    shapes        which decode steps are measured, their bytes  data            the tensors of one of them, rotated so that L2 is cold
    c_header      ctypes structs read from the public C header  leanattn_c      the library through its C interface
    cuda_driver   NVRTC and the driver API through ctypes       read_limit      kernels that only read
    oracle        attention in FP64, and what agrees with it    timing          graphs, events, interleaved rounds
    system_*      one adapter for each system                   systems         what an adapter returns
    measure       one shape, from data to samples               summary         medians, ratios, intervals
    environment   GPU, driver and libraries of a run            files           result files
    report        the page of a run                             markdown_parts  what all reports of bench/ share
    speedup_plot  the plot of a run                             plot            axes, points and legends of SVG plots
"""
