// What the functions of the border to Python have in common. Positional arguments only, since parsing names would cost
// more than the mark.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <exception>
#include <stdexcept>
#include <string_view>
#include <system_error>

namespace megatronapp::scan {

// Makes the type; null with a Python error set.
PyObject* make_recorder_type();

// Thrown when a Python error is already set.
struct PythonError {};

template <typename Function>
PyObject* guarded(Function function) {
    try {
        return function();
    } catch (const PythonError&) {
        return nullptr;
    } catch (const std::system_error& error) {
        PyObject* arguments = Py_BuildValue("is", error.code().value(), error.what());
        if (arguments != nullptr) {
            PyErr_SetObject(PyExc_OSError, arguments);
            Py_DECREF(arguments);
        }
    } catch (const std::logic_error& error) {
        PyErr_SetString(PyExc_ValueError, error.what());
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
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

inline long long integer(PyObject* value) {
    const long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) {
        throw PythonError{};
    }
    return number;
}

template <typename Integer>
Integer as(PyObject* value) {
    return static_cast<Integer>(integer(value));
}

inline double real(PyObject* value) {
    const double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred()) {
        throw PythonError{};
    }
    return number;
}

inline void expect(Py_ssize_t given, Py_ssize_t least, Py_ssize_t most) {
    if (given < least || given > most) {
        throw std::invalid_argument("wrong number of arguments");
    }
}

// The bytes of a contiguous buffer, which its owner can neither free nor resize meanwhile.
class Buffer {
public:
    explicit Buffer(PyObject* owner) {
        if (PyObject_GetBuffer(owner, &view_, PyBUF_SIMPLE) < 0) {
            throw PythonError{};
        }
    }
    ~Buffer() { PyBuffer_Release(&view_); }
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    std::string_view bytes() const {
        return {static_cast<const char*>(view_.buf), static_cast<std::size_t>(view_.len)};
    }

private:
    Py_buffer view_;
};

inline PyObject* none() { Py_RETURN_NONE; }

template <typename Function>
PyCFunction fast(Function function) {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

}  // namespace megatronapp::scan
