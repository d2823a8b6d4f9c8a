// A shared library that may not be there, opened at run time and never closed.
#pragma once

#include <string>

namespace megatronapp::rdma {

class Library {
public:
    // Throws std::runtime_error: "no <what>: ...".
    Library(const char* file, std::string what);

    // Throws std::runtime_error when the library has no such function.
    template <typename Function>
    void find(Function& function, const char* name) const {
        function = reinterpret_cast<Function>(symbol(name));
    }

private:
    void* symbol(const char* name) const;

    void* handle_;
    std::string what_;
};

}  // namespace megatronapp::rdma
