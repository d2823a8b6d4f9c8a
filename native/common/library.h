// A shared library that may not be there, opened at run time and never closed.
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace megatronapp::common {

class Library {
public:
    // Throws std::runtime_error: "no <what>: ...".
    Library(const char* file, std::string what)
        : handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL)), what_(std::move(what)) {
        if (handle_ == nullptr) {
            throw std::runtime_error("no " + what_ + ": " + file + " can't be opened");
        }
    }

    // Throws std::runtime_error when the library has no such function.
    template <typename Function>
    void find(Function& function, const char* name) const {
        find_or_null(function, name);
        if (function == nullptr) {
            throw std::runtime_error("this " + what_ + " has no " + name);
        }
    }

    // Null when the library, an older one say, has no such function.
    template <typename Function>
    void find_or_null(Function& function, const char* name) const {
        function = reinterpret_cast<Function>(dlsym(handle_, name));
    }

private:
    void* handle_;
    std::string what_;
};

}  // namespace megatronapp::common
