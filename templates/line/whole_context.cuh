// line/whole_context.cuh -- where the tokens of a request lie in its context, where the rank has all of it.

struct QueryPlace {};

LEAN_DEVICE int place_of(int token) { return token; }
