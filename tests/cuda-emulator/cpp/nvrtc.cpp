// A stand-in for CUDA's run-time compiler. The kernels are compiled already: it gives an image that the driver takes, and refuses what could
// not be compiled on a GPU's machine for want of files.
#include "driver.h"

#include <cstring>
#include <string>

namespace {

struct Program {
    std::string source, log;
    bool compiled;
};

enum nvrtcResult : int {
    NVRTC_SUCCESS = 0,
    NVRTC_ERROR_INVALID_INPUT = 3,
    NVRTC_ERROR_INVALID_PROGRAM = 4,
    NVRTC_ERROR_COMPILATION = 6,
};

constexpr char IMAGE[] = "// an image for the CUDA emulator\n";

// The first line that includes a file, or nothing.
std::string find_include(const std::string& source) {
    for (std::size_t begin = 0; begin < source.size();) {
        std::size_t end = source.find('\n', begin);
        std::string line = source.substr(begin, end - begin);
        std::size_t word = line.find_first_not_of(" \t");
        if (word != std::string::npos && line.compare(word, 8, "#include") == 0) return line;
        begin = end == std::string::npos ? source.size() : end + 1;
    }
    return {};
}

}  // namespace

API nvrtcResult nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 0;
    return NVRTC_SUCCESS;
}

API const char* nvrtcGetErrorString(nvrtcResult result) {
    switch (result) {
        case NVRTC_SUCCESS: return "NVRTC_SUCCESS";
        case NVRTC_ERROR_INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
        case NVRTC_ERROR_INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
        case NVRTC_ERROR_COMPILATION: return "NVRTC_ERROR_COMPILATION";
    }
    return "NVRTC_ERROR unknown";
}

API nvrtcResult nvrtcCreateProgram(Program** program, const char* source, const char*, int, const char* const*, const char* const*) {
    if (!program || !source) return NVRTC_ERROR_INVALID_INPUT;
    *program = new Program{source, {}, false};
    return NVRTC_SUCCESS;
}

API nvrtcResult nvrtcDestroyProgram(Program** program) {
    if (!program || !*program) return NVRTC_ERROR_INVALID_PROGRAM;
    delete *program;
    return NVRTC_SUCCESS;
}

API nvrtcResult nvrtcCompileProgram(Program* program, int, const char* const*) {
    std::string include = find_include(program->source);
    program->compiled = include.empty();
    if (program->compiled) return NVRTC_SUCCESS;
    program->log = "error: could not open source file: " + include + "\n";
    return NVRTC_ERROR_COMPILATION;
}

API nvrtcResult nvrtcGetProgramLogSize(Program* program, std::size_t* size) {
    *size = program->log.size() + 1;
    return NVRTC_SUCCESS;
}
API nvrtcResult nvrtcGetProgramLog(Program* program, char* log) {
    std::memcpy(log, program->log.c_str(), program->log.size() + 1);
    return NVRTC_SUCCESS;
}

API nvrtcResult nvrtcGetPTXSize(Program* program, std::size_t* size) {
    *size = sizeof IMAGE;
    return program->compiled ? NVRTC_SUCCESS : NVRTC_ERROR_INVALID_PROGRAM;
}
API nvrtcResult nvrtcGetPTX(Program* program, char* image) {
    if (!program->compiled) return NVRTC_ERROR_INVALID_PROGRAM;
    std::memcpy(image, IMAGE, sizeof IMAGE);
    return NVRTC_SUCCESS;
}
API nvrtcResult nvrtcGetCUBINSize(Program* program, std::size_t* size) { return nvrtcGetPTXSize(program, size); }
API nvrtcResult nvrtcGetCUBIN(Program* program, char* image) { return nvrtcGetPTX(program, image); }
