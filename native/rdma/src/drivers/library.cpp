#include "drivers/library.h"

#include <dlfcn.h>
#include <stdexcept>
#include <utility>

namespace megatronapp::rdma {

Library::Library(const char* file, std::string what)
    : handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL)), what_(std::move(what)) {
    if (handle_ == nullptr) {
        throw std::runtime_error("no " + what_ + ": " + file + " can't be opened");
    }
}

void* Library::symbol(const char* name) const {
    void* found = dlsym(handle_, name);
    if (found == nullptr) {
        throw std::runtime_error("this " + what_ + " has no " + name);
    }
    return found;
}

}  // namespace megatronapp::rdma
