#include "bindings/post.h"

#include "bindings/message.h"
#include "bindings/tensor.h"
#include "core/window.h"

namespace py = pybind11;

namespace megatronapp::rdma {

namespace {

constexpr std::uint64_t kFieldMax[] = {15, 255, (1 << 20) - 1, 0, 15};  // of a tag, save its step
constexpr Py_ssize_t kArguments = 11;

long long integer(py::handle object) {
    const long long value = PyLong_AsLongLong(object.ptr());
    if (value == -1 && PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
    }
    return value;
}

double real(py::handle object) {
    const double value = PyFloat_AsDouble(object.ptr());
    if (value == -1.0 && PyErr_Occurred() != nullptr) {
        throw py::error_already_set();
    }
    return value;
}

// A message of `type`, in the set `open` before anybody can be told that it has ended; None for a tensor that can't be
// moved.
py::object post(Engine& engine, py::handle type, py::handle owner, py::handle open, Direction direction, int peer,
                int source, const py::tuple& tag, py::handle tensor, py::handle stream, int device,
                double deadline_seconds) {
    Tensor read;
    if (!read_tensor(tensor, read) || (read.what.memory == Memory::kCuda && read.device != device)) {
        return py::none();
    }
    const auto operation = std::make_shared<Operation>();
    operation->direction = direction;
    operation->peer = peer;
    operation->tag = pack_tag(tag, source);
    operation->what = read.what;
    operation->data = read.data;
    operation->stream = stream.is_none() ? read.stream : PyLong_AsVoidPtr(stream.ptr());
    const py::object kept = without_gradient(tensor);
    py::object message = make_message(type, operation, owner, tag, kept, storage_of(kept));
    if (PySet_Add(open.ptr(), message.ptr()) != 0) {
        throw py::error_already_set();
    }
    try {
        py::gil_scoped_release unlocked;
        engine.post(operation, deadline_seconds);
    } catch (...) {
        PySet_Discard(open.ptr(), message.ptr());
        throw;
    }
    return message;
}

PyObject* post_method(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
    try {
        if (count != kArguments || !PyTuple_Check(arguments[6])) {
            throw py::type_error("post: see _native.pyi for what it takes");
        }
        const Direction direction = arguments[3] == Py_True ? Direction::kReceive : Direction::kSend;
        return post(py::cast<Engine&>(py::handle(self)), arguments[0], arguments[1], arguments[2], direction,
                    static_cast<int>(integer(arguments[4])), static_cast<int>(integer(arguments[5])),
                    py::reinterpret_borrow<py::tuple>(arguments[6]), arguments[7], arguments[8],
                    static_cast<int>(integer(arguments[9])), real(arguments[10]))
            .release()
            .ptr();
    } catch (py::error_already_set& error) {
        error.restore();
    } catch (const py::builtin_exception& error) {
        error.set_error();
    } catch (const std::out_of_range& error) {
        PyErr_SetString(PyExc_IndexError, error.what());
    } catch (const std::invalid_argument& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

PyMethodDef method = {"post", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(post_method)), METH_FASTCALL,
                      nullptr};

}  // namespace

std::uint64_t pack_tag(const py::tuple& tag, int source) {
    std::uint64_t fields[5];
    bool fits = tag.size() == 5 && source >= 0 && source <= 0xffff;
    for (std::size_t i = 0; fits && i < 5; ++i) {
        fields[i] = static_cast<std::uint64_t>(integer(PyTuple_GET_ITEM(tag.ptr(), static_cast<Py_ssize_t>(i))));
        fits = i == 3 || fields[i] <= kFieldMax[i];
    }
    if (!fits) {
        throw py::value_error("does not fit");
    }
    const auto [kind, chunk, microbatch, step, slot] = fields;
    return kind << 60 | (step % kSteps) << kStepShift | chunk << 40 | microbatch << 20 | slot << 16 |
           static_cast<std::uint64_t>(source);
}

void add_post(py::class_<Engine>& type) {
    PyObject* descriptor = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &method);
    if (descriptor == nullptr) {
        throw py::error_already_set();
    }
    type.attr("post") = py::reinterpret_steal<py::object>(descriptor);
}

}  // namespace megatronapp::rdma
