#include "bindings.h"
#include "recorder.h"

namespace megatronapp::scan {

namespace {

struct PyRecorder {
    PyObject_HEAD
    Recorder* recorder;
};

Recorder& of(PyObject* self) {
    Recorder* recorder = reinterpret_cast<PyRecorder*>(self)->recorder;
    if (recorder == nullptr) {
        throw std::logic_error("the recorder was not initialised");
    }
    return *recorder;
}

std::uint8_t name_of(const Recorder& recorder, PyObject* value) {
    const long long name = integer(value);
    if (name < 0 || name >= static_cast<long long>(recorder.names())) {
        throw std::invalid_argument("no such name of a span");
    }
    return static_cast<std::uint8_t>(name);
}

MarkId mark_of(PyObject* value) { return value == Py_None ? kNoMark : integer(value); }

PyObject* recorder_context(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 2, 2);
        of(self).context(as<std::int32_t>(args[0]), as<std::int16_t>(args[1]));
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

// communicator, peer, sequence, size, stream, then issued and message where they are given.
Operation operation_of(PyObject* const* args, Py_ssize_t count) {
    return {
        as<std::uint32_t>(args[0]), as<std::int32_t>(args[1]), integer(args[2]), integer(args[3]),
        as<std::uint8_t>(args[4]), count > 5 ? mark_of(args[5]) : kNoMark, count > 6 ? integer(args[6]) : 0};
}

PyObject* recorder_end_operation(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 5, 7);
        return PyLong_FromLongLong(of(self).end_operation(operation_of(args, count)));
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

PyObject* recorder_add_operation(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 8, 12);
        of(self).add_operation(
            name_of(of(self), args[0]), integer(args[1]), integer(args[2]), operation_of(args + 3, count - 3),
            count > 10 ? as<std::int32_t>(args[10]) : -1,
            static_cast<std::int16_t>(count > 11 ? as<std::int16_t>(args[11]) : -1));
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

// A tuple of StepEnd's fields in their order, as many as are known.
PyObject* recorder_end_step(PyObject* self, PyObject* fields) {
    return guarded([&] {
        if (!PyTuple_Check(fields)) {
            throw std::invalid_argument("a step's end is a tuple");
        }
        common::StepEnd end{};
        if (!PyArg_ParseTuple(
                fields, "k|lllllIIIIdddddkk;a step's end", &end.step, &end.start_ns, &end.duration_ns, &end.cpu_ns,
                &end.reference_ns, &end.reference_error_ns, &end.rows, &end.traced, &end.phases, &end.known, &end.loss,
                &end.learning_rate, &end.grad_norm, &end.tokens_per_second, &end.teraflops, &end.total_steps,
                &end.marks)) {
            throw PythonError{};
        }
        of(self).end_step(end);
        return none();
    });
}

PyObject* recorder_write_frame(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 2, 2);
        Recorder& recorder = of(self);
        const Buffer descriptor(args[0]), payload(args[1]);
        unlocked([&] {
            recorder.write_frame(descriptor.bytes(), payload.bytes());
            return true;
        });
        return none();
    });
}

// -- frontiers

PyObject* recorder_track(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 3, 3);
        return PyLong_FromUnsignedLong(of(self).frontiers().track(
            as<std::uint32_t>(args[0]), as<std::int32_t>(args[1]), integer(args[2]) != 0));
    });
}

PyObject* recorder_enqueue(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 4, 4);
        return PyLong_FromUnsignedLongLong(of(self).frontiers().enqueue(
            as<std::uint32_t>(args[0]), as<std::int32_t>(args[1]), as<std::uint64_t>(args[2]),
            as<std::uint64_t>(args[3])));
    });
}

PyObject* recorder_started(PyObject* self, PyObject* track) {
    return guarded([&] {
        of(self).frontiers().started(as<std::uint32_t>(track));
        return none();
    });
}

PyObject* recorder_complete(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 2, 2);
        of(self).frontiers().complete(as<std::uint32_t>(args[0]), as<std::uint64_t>(args[1]));
        return none();
    });
}

PyObject* recorder_complete_at(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 3, 3);
        of(self).complete_at(as<std::uint32_t>(args[0]), as<std::uint64_t>(args[1]), integer(args[2]));
        return none();
    });
}

// -- state

PyObject* recorder_set_step(PyObject* self, PyObject* step) {
    return guarded([&] {
        of(self).set_step(integer(step));
        return none();
    });
}

PyObject* recorder_set_phase(PyObject* self, PyObject* phase) {
    return guarded([&] {
        of(self).set_phase(as<std::uint32_t>(phase));
        return none();
    });
}

PyObject* recorder_set_closing(PyObject* self, PyObject*) {
    return guarded([&] {
        of(self).set_closing();
        return none();
    });
}

PyObject* recorder_set_memory(PyObject* self, PyObject* const* args, Py_ssize_t count) {
    return guarded([&] {
        expect(count, 4, 4);
        of(self).set_memory(
            as<std::uint64_t>(args[0]), as<std::uint64_t>(args[1]), as<std::uint64_t>(args[2]),
            as<std::uint64_t>(args[3]));
        return none();
    });
}

PyObject* recorder_control(PyObject* self, PyObject*) {
    return guarded([&] {
        const ControlWord word = of(self).control();
        return Py_BuildValue(
            "KIIII", static_cast<unsigned long long>(word.serial), word.enabled, word.interval, word.continuous,
            word.granularity);
    });
}

PyObject* recorder_close(PyObject* self, PyObject* timeout) {
    return guarded([&] {
        const double seconds = real(timeout);
        Recorder& recorder = of(self);
        return PyBool_FromLong(unlocked([&] { return recorder.close(seconds); }));
    });
}

PyObject* recorder_fd(PyObject* self, void*) {
    return guarded([&] { return PyLong_FromLong(of(self).descriptor()); });
}

PyObject* recorder_marks(PyObject* self, void*) {
    return guarded([&] { return PyLong_FromLongLong(of(self).marks()); });
}

Recorder::CurrentStream stream_source(PyObject* current_stream, PyObject* device) {
    // Both live as long as the process: a recorder is made once.
    Py_INCREF(current_stream);
    Py_INCREF(device);
    return [current_stream, device]() -> Stream {
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
    Py_ssize_t names, names_again, ring_bytes = Py_ssize_t{16} << 20, bulk_bytes = 0;
    PyObject *current_stream, *device;
    if (!PyArg_ParseTuple(
            args, "y#y#OO|nn", &on_host, &names, &blocking, &names_again, &current_stream, &device, &ring_bytes,
            &bulk_bytes)) {
        return -1;
    }
    PyObject* made = guarded([&] {
        if (names != names_again || names > 255) {
            throw std::invalid_argument("on_host and blocking must have one byte for each of at most 255 names");
        }
        Recorder*& recorder = reinterpret_cast<PyRecorder*>(self)->recorder;
        if (recorder != nullptr) {
            throw std::logic_error("the recorder is initialised already");
        }
        const bool cuda = current_stream != Py_None;
        recorder = new Recorder(
            std::string(on_host, static_cast<std::size_t>(names)),
            std::string(blocking, static_cast<std::size_t>(names)), cuda ? std::make_unique<Cuda>() : nullptr,
            cuda ? stream_source(current_stream, device) : Recorder::CurrentStream{},
            static_cast<std::size_t>(ring_bytes), static_cast<std::size_t>(bulk_bytes));
        return none();
    });
    Py_XDECREF(made);
    return made == nullptr ? -1 : 0;
}

void recorder_dealloc(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    Recorder* recorder = reinterpret_cast<PyRecorder*>(self)->recorder;
    if (recorder != nullptr) {
        Py_BEGIN_ALLOW_THREADS
        recorder->close(0);
        if (recorder->ended()) {  // else its thread uses it still
            delete recorder;
        }
        Py_END_ALLOW_THREADS
    }
    type->tp_free(self);
    Py_DECREF(type);
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
    {"add_operation", fast(recorder_add_operation), METH_FASTCALL, nullptr},
    {"mark", recorder_mark, METH_NOARGS, nullptr},
    {"done", recorder_done, METH_O, nullptr},
    {"innermost", recorder_innermost, METH_NOARGS, nullptr},
    {"depth", recorder_depth, METH_NOARGS, nullptr},
    {"end_step", recorder_end_step, METH_O, nullptr},
    {"write_frame", fast(recorder_write_frame), METH_FASTCALL, nullptr},
    {"track", fast(recorder_track), METH_FASTCALL, nullptr},
    {"enqueue", fast(recorder_enqueue), METH_FASTCALL, nullptr},
    {"started", recorder_started, METH_O, nullptr},
    {"complete", fast(recorder_complete), METH_FASTCALL, nullptr},
    {"complete_at", fast(recorder_complete_at), METH_FASTCALL, nullptr},
    {"set_step", recorder_set_step, METH_O, nullptr},
    {"set_phase", recorder_set_phase, METH_O, nullptr},
    {"set_closing", recorder_set_closing, METH_NOARGS, nullptr},
    {"set_memory", fast(recorder_set_memory), METH_FASTCALL, nullptr},
    {"control", recorder_control, METH_NOARGS, nullptr},
    {"close", recorder_close, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef recorder_properties[] = {
    {"fd", recorder_fd, nullptr, nullptr, nullptr},
    {"marks", recorder_marks, nullptr, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot recorder_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
    {Py_tp_init, reinterpret_cast<void*>(recorder_init)},
    {Py_tp_dealloc, reinterpret_cast<void*>(recorder_dealloc)},
    {Py_tp_methods, recorder_methods},
    {Py_tp_getset, recorder_properties},
    {0, nullptr},
};

PyType_Spec recorder_spec = {
    "megatronapp.scan.Recorder", sizeof(PyRecorder), 0, Py_TPFLAGS_DEFAULT, recorder_slots};

}  // namespace

PyObject* make_recorder_type() { return PyType_FromSpec(&recorder_spec); }

}  // namespace megatronapp::scan
