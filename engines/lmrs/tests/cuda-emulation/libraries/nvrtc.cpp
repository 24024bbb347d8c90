// Stands in for `libnvrtc.so.13`: compiles kernels for the CPU. An image is the path of a library. EMULATED_IMAGES is the folder
// for these libraries; SOURCES, a macro, is the folder of the emulation.
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <unistd.h>

struct Program {
    std::string text, name, image;
};

const int SUCCESS = 0, COMPILATION_ERROR = 6;

extern "C" {

int nvrtcVersion(int* major, int* minor) { *major = 13; *minor = 0; return SUCCESS; }
// The header `device.cuh` is not needed: the emulation stands in for it.
int nvrtcCreateProgram(Program** program, const char* text, const char* name, int, const char* const*, const char* const*) {
    *program = new Program{text, name, ""};
    return SUCCESS;
}
int nvrtcDestroyProgram(Program** program) { delete *program; return SUCCESS; }

int nvrtcCompileProgram(Program* program, int count, const char* const* options) {
    static int number = 0;
    std::string name = program->name.substr(0, program->name.find('.')), sources = SOURCES, folder = getenv("EMULATED_IMAGES");
    std::string base = folder + "/" + name + "-" + std::to_string(getpid()) + "-" + std::to_string(number++);
    std::ofstream(base + ".cu") << program->text;
    program->image = base + ".so";
    const char* compiler = getenv("CXX");
    std::string command = compiler ? compiler : "g++";
    command += " -std=c++17 -O2 -w -shared -fPIC";
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], "-D", 2)) command += " '" + std::string(options[i]) + "'";
    command += " '-DKERNELS=\"" + base + ".cu\"' '" + sources + "/libraries/" + name + "_launch.cpp' '" + folder + "/libcuda.so.1' -o '" + program->image + "'";
    return system(command.c_str()) ? COMPILATION_ERROR : SUCCESS;
}

int nvrtcGetProgramLogSize(Program*, size_t* bytes) { *bytes = 1; return SUCCESS; }
int nvrtcGetProgramLog(Program*, char* text) { *text = 0; return SUCCESS; }
int nvrtcGetCUBINSize(Program* program, size_t* bytes) { *bytes = program->image.size() + 1; return SUCCESS; }
int nvrtcGetCUBIN(Program* program, char* image) { strcpy(image, program->image.c_str()); return SUCCESS; }

}
