// The border to Python: positional arguments only, since parsing names would cost more than the mark.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <chrono>
#include <exception>
#include <stdexcept>
#include <thread>

#include "recorder.h"

namespace {

using megatronapp::Chunk;
using megatronapp::Cuda;
using megatronapp::kColumnNames;
using megatronapp::kNoMark;
using megatronapp::MarkId;
using megatronapp::Recorder;
using megatronapp::Resolved;

constexpr auto kPoll = std::chrono::milliseconds(2);

struct PyRecorder {
    PyObject_HEAD
    Recorder* recorder;
};

struct PySealed {
    PyObject_HEAD
    PyRecorder* owner;
    Chunk* chunk;
};

PyTypeObject* sealed_type = nullptr;

Recorder& of(PyObject* self) {
    Recorder* recorder = reinterpret_cast<PyRecorder*>(self)->recorder;
    if (recorder == nullptr) {
        throw std::logic_error("the recorder was not initialised");
    }
    return *recorder;
}

// Thrown when a Python error is already set.
struct PythonError {};

template <typename Function>
PyObject* guarded(Function function) {
    try {
        return function();
    } catch (const PythonError&) {
        return nullptr;
    } catch (const std::logic_error& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

long long integer(PyObject* value) {
    const long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) {
        throw PythonError{};
    }
    return number;
}

std::uint8_t name_of(const Recorder& recorder, PyObject* value) {
    const long long name = integer(value);
    if (name < 0 || name >= static_cast<long long>(recorder.names())) {
        throw std::invalid_argument("no such name of a span");
    }
    return static_cast<std::uint8_t>(name);
}

MarkId mark_of(PyObject* value) { return value == Py_None ? kNoMark : integer(value); }

void expect(Py_ssize_t given, Py_ssize_t least, Py_ssize_t most) {
    if (given < least || given > most) {
        throw std::invalid_argument("wrong number of arguments");
    }
}

PyObject* none() { Py_RETURN_NONE; }

PyObject* recorder_context(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 2, 2);
        of(self).context(static_cast<std::int32_t>(integer(args[0])), static_cast<std::int16_t>(integer(args[1])));
        return none();
    });
}

PyObject* recorder_begin(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 1, 2);
        of(self).begin(name_of(of(self), args[0]), count == 2 ? mark_of(args[1]) : kNoMark);
        return none();
    });
}

PyObject* recorder_end(PyObject* self, PyObject*) {
    return guarded([&] { return PyLong_FromLongLong(of(self).end()); });
}

PyObject* recorder_end_work(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 2, 2);
        return PyLong_FromLongLong(of(self).end_work(integer(args[0]), integer(args[1])));
    });
}

PyObject* recorder_end_operation(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 5, 6);
        return PyLong_FromLongLong(of(self).end_operation(
            static_cast<std::uint32_t>(integer(args[0])), static_cast<std::int32_t>(integer(args[1])),
            integer(args[2]), integer(args[3]), static_cast<std::uint8_t>(integer(args[4])),
            count == 6 ? mark_of(args[5]) : kNoMark));
    });
}

PyObject* recorder_cancel(PyObject* self, PyObject*) {
    return guarded([&] { return PyLong_FromLongLong(of(self).cancel()); });
}

PyObject* recorder_restart(PyObject* self, PyObject*) {
    return guarded([&] {
        of(self).restart();
        return none();
    });
}

PyObject* recorder_switch(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 4, 4);
        int open[2] = {-1, -1};
        for (int i = 0; i < 2; ++i) {
            if (integer(args[2 + i]) >= 0) {
                open[i] = name_of(of(self), args[2 + i]);
            }
        }
        of(self).switch_to(
            static_cast<int>(integer(args[0])), static_cast<std::int16_t>(integer(args[1])), open[0], open[1]);
        return none();
    });
}

PyObject* recorder_add(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 4, 4);
        of(self).add(name_of(of(self), args[0]), integer(args[1]), integer(args[2]), integer(args[3]));
        return none();
    });
}

PyObject* recorder_mark(PyObject* self, PyObject*) {
    return guarded([&] { return PyLong_FromLongLong(of(self).mark()); });
}

PyObject* recorder_done(PyObject* self, PyObject* mark) {
    return guarded([&] { return PyBool_FromLong(of(self).done(integer(mark))); });
}

PyObject* recorder_innermost(PyObject* self, PyObject*) {
    return guarded([&] {
        const auto [name, since_ns] = of(self).innermost();
        return Py_BuildValue("iL", name, static_cast<long long>(since_ns));
    });
}

PyObject* recorder_depth(PyObject* self, PyObject*) {
    return guarded([&] { return PyLong_FromSize_t(of(self).depth()); });
}

PyObject* recorder_seal(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        std::unique_ptr<Chunk> chunk = of(self).seal();
        auto* sealed = PyObject_New(PySealed, sealed_type);
        if (sealed == nullptr) {
            of(self).recycle(std::move(chunk));
            return nullptr;
        }
        sealed->owner = reinterpret_cast<PyRecorder*>(Py_NewRef(self));
        sealed->chunk = chunk.release();
        return reinterpret_cast<PyObject*>(sealed);
    });
}

Recorder::CurrentStream stream_source(PyObject* current_stream, PyObject* device) {
    // Both live as long as the process: a recorder is made once.
    Py_INCREF(current_stream);
    Py_INCREF(device);
    return [current_stream, device]() -> megatronapp::Stream {
        PyObject* raw = PyObject_CallOneArg(current_stream, device);
        if (raw == nullptr) {
            throw PythonError{};
        }
        void* stream = PyLong_AsVoidPtr(raw);
        Py_DECREF(raw);
        return stream;
    };
}

int recorder_init(PyObject* self, PyObject* args, PyObject*) {
    const char *on_host, *blocking;
    Py_ssize_t names, names_again;
    PyObject *current_stream, *device;
    if (!PyArg_ParseTuple(
            args, "y#y#OO", &on_host, &names, &blocking, &names_again, &current_stream, &device)) {
        return -1;
    }
    PyObject* made = guarded([&] {
        if (names != names_again || names > 255) {
            throw std::invalid_argument("on_host and blocking must have one byte for each of at most 255 names");
        }
        const bool cuda = current_stream != Py_None;
        reinterpret_cast<PyRecorder*>(self)->recorder = new Recorder(
            std::string(on_host, static_cast<std::size_t>(names)),
            std::string(blocking, static_cast<std::size_t>(names)), cuda ? std::make_unique<Cuda>() : nullptr,
            cuda ? stream_source(current_stream, device) : Recorder::CurrentStream{});
        return none();
    });
    Py_XDECREF(made);
    return made == nullptr ? -1 : 0;
}

void recorder_dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<PyRecorder*>(self)->recorder;
    type->tp_free(self);
    Py_DECREF(type);
}

Chunk& chunk_of(PyObject* self) {
    Chunk* chunk = reinterpret_cast<PySealed*>(self)->chunk;
    if (chunk == nullptr) {
        throw std::logic_error("already resolved");
    }
    return *chunk;
}

// Runs a function without Python's lock, and hands its exception on afterwards.
template <typename Function>
auto unlocked(Function function) {
    std::exception_ptr error;
    decltype(function()) result{};
    Py_BEGIN_ALLOW_THREADS
    try {
        result = function();
    } catch (...) {
        error = std::current_exception();
    }
    Py_END_ALLOW_THREADS
    if (error) {
        std::rethrow_exception(error);
    }
    return result;
}

PyObject* sealed_wait(PyObject* self, PyObject* timeout) {
    return guarded([&] {
        const double seconds = PyFloat_AsDouble(timeout);
        if (seconds == -1.0 && PyErr_Occurred()) {
            throw PythonError{};
        }
        const Chunk& chunk = chunk_of(self);
        const Recorder& recorder = *reinterpret_cast<PySealed*>(self)->owner->recorder;
        const bool ready = unlocked([&] {
            const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
            while (!recorder.ready(chunk)) {
                if (std::chrono::steady_clock::now() > deadline) {
                    return false;
                }
                std::this_thread::sleep_for(kPoll);
            }
            return true;
        });
        return PyBool_FromLong(ready);
    });
}

PyObject* sealed_resolve(PyObject* self, PyObject*) {
    return guarded([&]() -> PyObject* {
        auto* sealed = reinterpret_cast<PySealed*>(self);
        Recorder& recorder = *sealed->owner->recorder;
        const Chunk& chunk = chunk_of(self);
        const auto rows = static_cast<Py_ssize_t>(chunk.rows.size());
        const Resolved resolved = unlocked([&] { return recorder.resolve(chunk); });
        recorder.recycle(std::unique_ptr<Chunk>(sealed->chunk));
        sealed->chunk = nullptr;
        PyObject* columns = PyTuple_New(static_cast<Py_ssize_t>(resolved.columns.size()));
        if (columns == nullptr) {
            return nullptr;
        }
        for (std::size_t i = 0; i < resolved.columns.size(); ++i) {
            PyObject* bytes = PyBytes_FromStringAndSize(
                reinterpret_cast<const char*>(resolved.columns[i].data()),
                rows * static_cast<Py_ssize_t>(sizeof(std::int64_t)));
            if (bytes == nullptr) {
                Py_DECREF(columns);
                return nullptr;
            }
            PyTuple_SET_ITEM(columns, static_cast<Py_ssize_t>(i), bytes);
        }
        return Py_BuildValue(
            "nLLN", rows, static_cast<long long>(resolved.reference_ns),
            static_cast<long long>(resolved.reference_error_ns), columns);
    });
}

void sealed_dealloc(PyObject* self) {
    auto* sealed = reinterpret_cast<PySealed*>(self);
    PyTypeObject* type = Py_TYPE(self);
    if (sealed->chunk != nullptr) {
        sealed->owner->recorder->recycle(std::unique_ptr<Chunk>(sealed->chunk));
    }
    Py_DECREF(sealed->owner);
    type->tp_free(self);
    Py_DECREF(type);
}

template <typename Function>
PyCFunction fast(Function function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef recorder_methods[] = {
    {"context", fast(recorder_context), METH_FASTCALL, nullptr},
    {"begin", fast(recorder_begin), METH_FASTCALL, nullptr},
    {"end", recorder_end, METH_NOARGS, nullptr},
    {"end_work", fast(recorder_end_work), METH_FASTCALL, nullptr},
    {"end_operation", fast(recorder_end_operation), METH_FASTCALL, nullptr},
    {"cancel", recorder_cancel, METH_NOARGS, nullptr},
    {"restart", recorder_restart, METH_NOARGS, nullptr},
    {"switch", fast(recorder_switch), METH_FASTCALL, nullptr},
    {"add", fast(recorder_add), METH_FASTCALL, nullptr},
    {"mark", recorder_mark, METH_NOARGS, nullptr},
    {"done", recorder_done, METH_O, nullptr},
    {"innermost", recorder_innermost, METH_NOARGS, nullptr},
    {"depth", recorder_depth, METH_NOARGS, nullptr},
    {"seal", recorder_seal, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot recorder_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_init, reinterpret_cast<void*>(recorder_init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(recorder_dealloc)},
    {Py_tp_methods, recorder_methods},
    {0, nullptr},
};

PyType_Spec recorder_spec = {
    "megatronapp_scan.Recorder", sizeof(PyRecorder), 0, Py_TPFLAGS_DEFAULT, recorder_slots};

PyMethodDef sealed_methods[] = {
    {"wait", sealed_wait, METH_O, nullptr},
    {"resolve", sealed_resolve, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot sealed_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(sealed_dealloc)},
    {Py_tp_methods, sealed_methods},
    {0, nullptr},
};

PyType_Spec sealed_spec = {
    "megatronapp_scan.Sealed", sizeof(PySealed), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    sealed_slots};

PyObject* place_brackets(PyObject*, PyObject* brackets) {
    return guarded([&] {
        megatronapp::HostLine line;
        PyObject* sequence = PySequence_Fast(brackets, "brackets must be a sequence");
        PyObject* placed = sequence == nullptr ? nullptr : PyList_New(0);
        for (Py_ssize_t i = 0; placed != nullptr && i < PySequence_Fast_GET_SIZE(sequence); ++i) {
            long long device_ns, before_ns, after_ns;
            PyObject* entry = nullptr;
            if (PyArg_ParseTuple(PySequence_Fast_GET_ITEM(sequence, i), "LLL", &device_ns, &before_ns, &after_ns)) {
                const auto [host_ns, error_ns] = line.place({device_ns, before_ns, after_ns});
                entry = Py_BuildValue("LL", static_cast<long long>(host_ns), static_cast<long long>(error_ns));
            }
            if (entry == nullptr || PyList_Append(placed, entry) < 0) {
                Py_CLEAR(placed);
            }
            Py_XDECREF(entry);
        }
        Py_XDECREF(sequence);
        return placed;
    });
}

PyMethodDef module_methods[] = {
    {"place_brackets", place_brackets, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, "_native", "The native recorder.", -1, module_methods, nullptr, nullptr, nullptr, nullptr};

PyObject* column_names() {
    PyObject* names = PyTuple_New(static_cast<Py_ssize_t>(kColumnNames.size()));
    for (std::size_t i = 0; names != nullptr && i < kColumnNames.size(); ++i) {
        PyTuple_SET_ITEM(names, static_cast<Py_ssize_t>(i), PyUnicode_InternFromString(kColumnNames[i]));
    }
    return names;
}

}  // namespace

PyMODINIT_FUNC PyInit__native() {
    PyObject* module = PyModule_Create(&module_definition);
    if (module == nullptr) {
        return nullptr;
    }
    PyObject* recorder_type = PyType_FromSpec(&recorder_spec);
    sealed_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&sealed_spec));
    PyObject* names = column_names();
    if (recorder_type == nullptr || sealed_type == nullptr || names == nullptr ||
        PyModule_AddObjectRef(module, "Recorder", recorder_type) < 0 ||
        PyModule_AddObjectRef(module, "Sealed", reinterpret_cast<PyObject*>(sealed_type)) < 0 ||
        PyModule_AddObjectRef(module, "COLUMNS", names) < 0) {
        Py_DECREF(module);
        return nullptr;
    }
    return module;
}
