#include "bindings/tensor.h"

#include <vector>

namespace py = pybind11;

namespace megatronapp::rdma {

namespace {

constexpr const char* kDtypes[] = {
    "uint8",   "int8",    "int16", "int32",     "int64",      "float16",       "bfloat16",    "float32", "float64",
    "bool",    "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64",
};

// What is asked of each tensor, looked up once: a message costs little more than these questions.
struct Torch {
    struct Dtype {
        PyObject* object;
        std::uint64_t bytes;
    };

    static const Torch& get() {
        static const Torch* torch = new Torch;  // never destroyed: the interpreter may be gone before
        return *torch;
    }

    PyObject* strided;
    std::vector<Dtype> dtypes;
    PyObject* layout = PyUnicode_InternFromString("layout");
    PyObject* is_cuda = PyUnicode_InternFromString("is_cuda");
    PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
    PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
    PyObject* is_conj = PyUnicode_InternFromString("is_conj");
    PyObject* is_neg = PyUnicode_InternFromString("is_neg");
    PyObject* dtype = PyUnicode_InternFromString("dtype");
    PyObject* shape = PyUnicode_InternFromString("shape");
    PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
    PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
    PyObject* detach = PyUnicode_InternFromString("detach");
    PyObject* untyped_storage = PyUnicode_InternFromString("untyped_storage");

private:
    Torch() {
        const py::module_ torch = py::module_::import("torch");
        strided = py::object(torch.attr("strided")).release().ptr();
        for (const char* name : kDtypes) {
            const py::object each = torch.attr(name);
            dtypes.push_back({py::object(each).release().ptr(), each.attr("itemsize").cast<std::uint64_t>()});
        }
    }
};

bool truth(const py::object& object) { return object.ptr() == Py_True; }

py::object made(PyObject* object) {
    if (object == nullptr) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(object);
}

py::object attribute(py::handle of, PyObject* name) { return made(PyObject_GetAttr(of.ptr(), name)); }

py::object called(py::handle of, PyObject* method) { return made(PyObject_CallMethodNoArgs(of.ptr(), method)); }

bool read_dtype(const Torch& torch, py::handle dtype, Tensor& read) {
    for (std::size_t i = 0; i < torch.dtypes.size(); ++i) {
        if (torch.dtypes[i].object == dtype.ptr()) {
            read.what.dtype = static_cast<std::uint8_t>(i);
            read.what.bytes = torch.dtypes[i].bytes;
            return true;
        }
    }
    return false;
}

// Multiplies the bytes of one element, too.
bool read_shape(py::handle shape, Descriptor& what) {
    const Py_ssize_t dimensions = PyTuple_Size(shape.ptr());
    if (dimensions < 0) {
        throw py::error_already_set();
    }
    if (static_cast<std::size_t>(dimensions) > kMaxDimensions) {
        return false;
    }
    what.dimensions = static_cast<std::uint8_t>(dimensions);
    for (Py_ssize_t i = 0; i < dimensions; ++i) {
        const long long size = PyLong_AsLongLong(PyTuple_GET_ITEM(shape.ptr(), i));
        if (size == -1 && PyErr_Occurred() != nullptr) {
            throw py::error_already_set();
        }
        what.shape[i] = size;
        what.bytes *= static_cast<std::uint64_t>(size);
    }
    return true;
}

}  // namespace

py::tuple dtype_names() {
    py::tuple names(std::size(kDtypes));
    for (std::size_t i = 0; i < std::size(kDtypes); ++i) {
        names[i] = py::str(kDtypes[i]);
    }
    return names;
}

bool read_tensor(py::handle tensor, Tensor& read) {
    const Torch& torch = Torch::get();
    const bool cuda = truth(attribute(tensor, torch.is_cuda));
    const bool plain = attribute(tensor, torch.layout).ptr() == torch.strided &&
                       (cuda || truth(attribute(tensor, torch.is_cpu))) &&
                       truth(called(tensor, torch.is_contiguous)) &&
                       !truth(called(tensor, torch.is_conj)) &&
                       !truth(called(tensor, torch.is_neg));
    if (!plain || !read_dtype(torch, attribute(tensor, torch.dtype), read) ||
        !read_shape(attribute(tensor, torch.shape), read.what)) {
        return false;
    }
    read.what.memory = cuda ? Memory::kCuda : Memory::kHost;
    const unsigned long long address = PyLong_AsUnsignedLongLong(called(tensor, torch.data_ptr).ptr());
    if (PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
    }
    read.data = reinterpret_cast<char*>(address);
    return true;
}

py::object without_gradient(py::handle tensor) {
    const Torch& torch = Torch::get();
    return truth(attribute(tensor, torch.requires_grad)) ? called(tensor, torch.detach)
                                                         : py::reinterpret_borrow<py::object>(tensor);
}

py::object storage_of(py::handle tensor) { return called(tensor, Torch::get().untyped_storage); }

}  // namespace megatronapp::rdma
