#include "bindings/tensor.h"

#include <string>

#include "drivers/dlpack.h"

namespace py = pybind11;

namespace megatronapp::rdma {

namespace {

struct Dtype {
    const char* name;
    std::uint8_t code;
    std::uint8_t bits;
};

constexpr Dtype kDtypes[] = {
    {"uint8", DlExchange::kUnsigned, 8},
    {"int8", DlExchange::kInt, 8},
    {"int16", DlExchange::kInt, 16},
    {"int32", DlExchange::kInt, 32},
    {"int64", DlExchange::kInt, 64},
    {"float16", DlExchange::kFloat, 16},
    {"bfloat16", DlExchange::kBfloat, 16},
    {"float32", DlExchange::kFloat, 32},
    {"float64", DlExchange::kFloat, 64},
    {"bool", DlExchange::kBool, 8},
    {"complex64", DlExchange::kComplex, 64},
    {"complex128", DlExchange::kComplex, 128},
    {"float8_e4m3fn", DlExchange::kFloat8E4m3fn, 8},
    {"float8_e5m2", DlExchange::kFloat8E5m2, 8},
    {"uint16", DlExchange::kUnsigned, 16},
    {"uint32", DlExchange::kUnsigned, 32},
    {"uint64", DlExchange::kUnsigned, 64},
};

const DlExchange& exchange_of(PyTypeObject* type) {
    const py::object capsule = py::getattr(reinterpret_cast<PyObject*>(type), DlExchange::kAttribute, py::none());
    if (capsule.is_none()) {
        throw py::type_error(std::string("a ") + type->tp_name + " can't be moved: only tensors can");
    }
    const void* found = PyCapsule_GetPointer(capsule.ptr(), DlExchange::kCapsule);
    if (found == nullptr) {
        throw py::error_already_set();
    }
    const auto& exchange = *static_cast<const DlExchange*>(found);
    if (exchange.major != DlExchange::kMajor || exchange.describe == nullptr) {
        throw py::type_error("its DLPack exchange API is of version " + std::to_string(exchange.major) + ", not 1");
    }
    return exchange;
}

// Looked up once: a message costs little more than what is asked of its tensor.
struct Torch {
    static const Torch& get() {
        static const Torch* torch = new Torch;  // never destroyed: the interpreter may be gone before
        return *torch;
    }

    const DlExchange& exchange(PyTypeObject* of) const { return of == type ? *own : exchange_of(of); }

    PyTypeObject* type;
    const DlExchange* own;
    PyObject* is_conj = PyUnicode_InternFromString("is_conj");
    PyObject* is_neg = PyUnicode_InternFromString("is_neg");
    PyObject* requires_grad = PyUnicode_InternFromString("requires_grad");
    PyObject* detach = PyUnicode_InternFromString("detach");
    PyObject* untyped_storage = PyUnicode_InternFromString("untyped_storage");

private:
    Torch() {
        const py::object tensor = py::module_::import("torch").attr("Tensor");
        type = reinterpret_cast<PyTypeObject*>(py::object(tensor).release().ptr());
        own = &exchange_of(type);
    }
};

py::object made(PyObject* object) {
    if (object == nullptr) {
        throw py::error_already_set();
    }
    return py::reinterpret_steal<py::object>(object);
}

py::object called(py::handle of, PyObject* method) { return made(PyObject_CallMethodNoArgs(of.ptr(), method)); }

bool truth(const py::object& object) { return object.ptr() == Py_True; }

bool read_dtype(const DlTensor& tensor, Descriptor& what) {
    for (std::size_t i = 0; i < std::size(kDtypes); ++i) {
        if (kDtypes[i].code == tensor.type_code && kDtypes[i].bits == tensor.type_bits && tensor.type_lanes == 1) {
            what.dtype = static_cast<std::uint8_t>(i);
            what.bytes = kDtypes[i].bits / 8;
            return true;
        }
    }
    return false;
}

// Multiplies the bytes of one element, too.
bool read_shape(const DlTensor& tensor, Descriptor& what) {
    if (static_cast<std::size_t>(tensor.dimensions) > kMaxDimensions) {
        return false;
    }
    what.dimensions = static_cast<std::uint8_t>(tensor.dimensions);
    bool contiguous = true;
    std::int64_t elements = 1;
    for (int i = tensor.dimensions; i-- > 0;) {
        what.shape[i] = tensor.shape[i];
        contiguous &= tensor.shape[i] == 1 || tensor.strides[i] == elements;
        elements *= tensor.shape[i];
    }
    what.bytes *= static_cast<std::uint64_t>(elements);
    return contiguous || elements == 0;
}

// A view that stands for other numbers than those in its memory.
bool is_lazy(const Torch& torch, py::handle tensor, std::uint8_t code) {
    const bool may_be_negative = code == DlExchange::kFloat || code == DlExchange::kBfloat || code == DlExchange::kComplex;
    return (code == DlExchange::kComplex && truth(called(tensor, torch.is_conj))) ||
           (may_be_negative && truth(called(tensor, torch.is_neg)));
}

}  // namespace

py::tuple dtype_names() {
    py::tuple names(std::size(kDtypes));
    for (std::size_t i = 0; i < std::size(kDtypes); ++i) {
        names[i] = py::str(kDtypes[i].name);
    }
    return names;
}

bool read_tensor(py::handle tensor, Tensor& read) {
    const Torch& torch = Torch::get();
    const DlExchange& exchange = torch.exchange(Py_TYPE(tensor.ptr()));
    DlTensor found;
    if (exchange.describe(tensor.ptr(), &found) != 0) {
        PyErr_Clear();  // sparse, quantised, without memory: the caller says it better
        return false;
    }
    const bool cuda = found.device_type == DlExchange::kCuda;
    if ((!cuda && found.device_type != DlExchange::kCpu) || !read_dtype(found, read.what) ||
        !read_shape(found, read.what) || (found.data == nullptr && read.what.bytes != 0) ||
        is_lazy(torch, tensor, found.type_code)) {
        return false;
    }
    read.data = static_cast<char*>(found.data) + found.byte_offset;
    if (cuda) {
        read.what.memory = Memory::kCuda;
        read.device = found.device_id;
        if (exchange.current_stream(found.device_type, found.device_id, &read.stream) != 0) {
            throw py::error_already_set();
        }
    }
    return true;
}

py::object without_gradient(py::handle tensor) {
    const Torch& torch = Torch::get();
    return truth(made(PyObject_GetAttr(tensor.ptr(), torch.requires_grad)))
               ? called(tensor, torch.detach)
               : py::reinterpret_borrow<py::object>(tensor);
}

py::object storage_of(py::handle tensor) { return called(tensor, Torch::get().untyped_storage); }

}  // namespace megatronapp::rdma
