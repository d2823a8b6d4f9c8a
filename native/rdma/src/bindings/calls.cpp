#include "bindings/calls.h"

#include "api/errors.h"
#include "bindings/message.h"
#include "bindings/tensor.h"
#include "core/window.h"

namespace py = pybind11;

namespace megatronapp::rdma {

namespace {

constexpr std::uint64_t kFieldMax[] = {15, 255, (1 << 20) - 1, 0, 15};  // of a tag, save its round
constexpr Py_ssize_t kPostArguments = 12, kWaitArguments = 3;

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
                double deadline_seconds, int priority) {
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
    operation->priority = priority;
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

// What Python sees of a wait: 0 while the message is under way.
enum Ended : long { kNotYet = 0, kWell = 1, kOtherwise = 2 };

Ended wait(Engine& engine, py::handle message, double timeout_seconds, py::handle open) {
    const OperationPtr operation = operation_of(message);
    bool ended;
    {
        py::gil_scoped_release unlocked;
        ended = engine.wait(operation, timeout_seconds);
    }
    if (!ended) {
        return kNotYet;
    }
    if (operation->status.load(std::memory_order_acquire) != Status::kDone) {
        return kOtherwise;
    }
    const int found = PySet_Discard(open.ptr(), message.ptr());
    if (found < 0) {
        throw py::error_already_set();
    }
    return found == 1 ? kWell : kOtherwise;
}

// The result of `action`, or its exception as Python's.
template <typename Action>
PyObject* translated(Action action) {
    try {
        return action();
    } catch (py::error_already_set& error) {
        error.restore();
    } catch (const py::builtin_exception& error) {
        error.set_error();
    } catch (const Exhausted& error) {
        PyErr_SetString(PyExc_BufferError, error.what());
    } catch (const std::out_of_range& error) {
        PyErr_SetString(PyExc_IndexError, error.what());
    } catch (const std::invalid_argument& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

PyObject* post_method(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
    return translated([&] {
        if (count != kPostArguments || !PyTuple_Check(arguments[6])) {
            throw py::type_error("post: see _native.pyi for what it takes");
        }
        const Direction direction = arguments[3] == Py_True ? Direction::kReceive : Direction::kSend;
        return post(py::cast<Engine&>(py::handle(self)), arguments[0], arguments[1], arguments[2], direction,
                    static_cast<int>(integer(arguments[4])), static_cast<int>(integer(arguments[5])),
                    py::reinterpret_borrow<py::tuple>(arguments[6]), arguments[7], arguments[8],
                    static_cast<int>(integer(arguments[9])), real(arguments[10]), static_cast<int>(integer(arguments[11])))
            .release()
            .ptr();
    });
}

PyObject* wait_method(PyObject* self, PyObject* const* arguments, Py_ssize_t count) {
    return translated([&] {
        if (count != kWaitArguments) {
            throw py::type_error("wait: see _native.pyi for what it takes");
        }
        Engine& engine = py::cast<Engine&>(py::handle(self));
        return PyLong_FromLong(wait(engine, arguments[0], real(arguments[1]), arguments[2]));
    });
}

using FastCall = PyObject* (*)(PyObject*, PyObject* const*, Py_ssize_t);

PyCFunction method(FastCall function) { return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function)); }

PyMethodDef methods[] = {
    {"post", method(post_method), METH_FASTCALL, nullptr},
    {"wait", method(wait_method), METH_FASTCALL, nullptr},
};

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
    const auto [kind, chunk, microbatch, round, slot] = fields;
    return kind << 60 | (round % kRounds) << kRoundShift | chunk << 40 | microbatch << 20 | slot << 16 |
           static_cast<std::uint64_t>(source);
}

void add_calls(py::handle type) {
    for (PyMethodDef& each : methods) {
        PyObject* descriptor = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(type.ptr()), &each);
        if (descriptor == nullptr) {
            throw py::error_already_set();
        }
        type.attr(each.ml_name) = py::reinterpret_steal<py::object>(descriptor);
    }
}

}  // namespace megatronapp::rdma
