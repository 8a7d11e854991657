// standalone/page_rows.cuh -- makes the page table and context lengths that a decode kernel reads of page tables in
// compressed rows, one list of pages for the whole batch and where each request's part of it begins (the indptr,
// indices and last_page_len of FlashInfer). This is a source of its own, not part of any decode kernel. Host and device
// share the argument block and the definition of a row.

#if defined(__CUDACC__)
#define LEAN_PAGE_ROWS_HD __host__ __device__ __forceinline__
#else
#define LEAN_PAGE_ROWS_HD inline
#endif

struct LeanPageRows {
  const int* indptr;         // [batch + 1]: request r has the pages indices[indptr[r]] to indices[indptr[r + 1] - 1]
  const int* indices;        // [index_count]: numbers of pages in the pool
  const int* last_page_len;  // [batch]: tokens in the last page of each request, 1 to page_size
  int* page_table;           // [batch, max_pages]; entries behind a request's last page are not written
  int* context_lengths;      // [batch]
  long long page_table_stride;
  int batch, max_pages, page_size, index_count;
};
static_assert(sizeof(LeanPageRows) == 64, "host and device must agree on the argument block");

// Which part of `indices` is a request's, and how many tokens its context has.
struct LeanPageRow {
  int begin, pages, context_length;
};

// Numbers that contradict each other are cut to what exists, so that the decode kernel never leaves the page table.
LEAN_PAGE_ROWS_HD LeanPageRow lean_page_row(const LeanPageRows& rows, int request) {
  int begin = rows.indptr[request], end = rows.indptr[request + 1], last = rows.last_page_len[request];
  if (begin < 0) begin = 0;
  if (end > rows.index_count) end = rows.index_count;
  if (last < 0) last = 0;
  if (last > rows.page_size) last = rows.page_size;
  int pages = end > begin ? end - begin : 0;
  if (pages > rows.max_pages) {
    pages = rows.max_pages;
    last = rows.page_size;
  }
  return {begin, pages, pages > 0 ? (pages - 1) * rows.page_size + last : 0};
}

#if defined(__CUDACC__)
// The CTAs of a column of the grid write the row of one request.
extern "C" __global__ void __launch_bounds__(256) page_rows(const __grid_constant__ LeanPageRows rows) {
  const LeanPageRow row = lean_page_row(rows, blockIdx.x);
  int* const entries = rows.page_table + blockIdx.x * rows.page_table_stride;
  for (int page = blockIdx.y * blockDim.x + threadIdx.x; page < row.pages; page += gridDim.y * blockDim.x)
    entries[page] = rows.indices[row.begin + page];
  if (blockIdx.y == 0 && threadIdx.x == 0) rows.context_lengths[blockIdx.x] = row.context_length;
}
#endif
