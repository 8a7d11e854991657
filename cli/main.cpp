#include "cli/commands.hpp"

int main(int argc, char** argv) { return leanattn::run_program(argc, argv); }
