#include "bindings/message.h"

#include <structmember.h>

#include <new>

namespace py = pybind11;

namespace megatronapp::rdma {

namespace {

struct MessageObject {
    PyObject_HEAD
    OperationPtr operation;
    PyObject* engine;
    PyObject* tag;
    PyObject* tensor;
    PyObject* memory;
    char seen;
};

PyTypeObject* message_type = nullptr;

MessageObject& self_of(PyObject* object) { return *reinterpret_cast<MessageObject*>(object); }

Operation& of(PyObject* object) { return *self_of(object).operation; }

int traverse(PyObject* object, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self_of(object).engine);
    Py_VISIT(self_of(object).tag);
    Py_VISIT(self_of(object).tensor);
    Py_VISIT(self_of(object).memory);
    return 0;
}

int clear(PyObject* object) {
    Py_CLEAR(self_of(object).engine);
    Py_CLEAR(self_of(object).tag);
    Py_CLEAR(self_of(object).tensor);
    Py_CLEAR(self_of(object).memory);
    return 0;
}

void destroy(PyObject* object) {
    PyObject_GC_UnTrack(object);
    PyTypeObject* type = Py_TYPE(object);
    clear(object);
    of(object).owner = nullptr;
    self_of(object).operation.~OperationPtr();
    type->tp_free(object);
    Py_DECREF(type);
}

// ---- what Python reads

template <typename Value>
PyObject* cast(const Value& value) {
    return py::cast(value).release().ptr();
}

PyObject* get_done(PyObject* object, PyObject*) { return PyBool_FromLong(!of(object).pending()); }

PyObject* get_good(PyObject* object, void*) {
    return PyBool_FromLong(of(object).status.load(std::memory_order_acquire) == Status::kDone);
}

PyObject* get_failed(PyObject* object, void*) {
    const Status status = of(object).status.load(std::memory_order_acquire);
    return PyBool_FromLong(status != Status::kDone && status != Status::kPending);
}

PyObject* get_cuda(PyObject* object, void*) { return PyBool_FromLong(of(object).what.memory == Memory::kCuda); }

PyMemberDef members[] = {
    {"engine", T_OBJECT_EX, offsetof(MessageObject, engine), READONLY, "That moves it."},
    {"tag", T_OBJECT_EX, offsetof(MessageObject, tag), READONLY, nullptr},
    {"tensor", T_OBJECT_EX, offsetof(MessageObject, tensor), READONLY, nullptr},
    {"seen", T_BOOL, offsetof(MessageObject, seen), 0,
     "A stream waits for it: it is not news any more when it arrives."},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef properties[] = {
    {"id", [](PyObject* o, void*) { return PyLong_FromUnsignedLongLong(of(o).id); }, nullptr, nullptr, nullptr},
    {"peer", [](PyObject* o, void*) { return PyLong_FromLong(of(o).peer); }, nullptr, nullptr, nullptr},
    {"nbytes", [](PyObject* o, void*) { return PyLong_FromUnsignedLongLong(of(o).what.bytes); }, nullptr, nullptr,
     nullptr},
    {"done_ns", [](PyObject* o, void*) { return PyLong_FromLongLong(of(o).done_ns); }, nullptr,
     "When it ended, on the monotonic clock; 0 before.", nullptr},
    {"good", get_good, nullptr, "Whether it has ended well.", nullptr},
    {"failed", get_failed, nullptr, "Whether it has ended otherwise.", nullptr},
    {"in_use", [](PyObject* o, void*) { return PyBool_FromLong(of(o).in_use.load(std::memory_order_acquire)); }, nullptr,
     "Whether the GPU or a network card may still read or write its tensor.", nullptr},
    {"cuda", get_cuda, nullptr, "Whether it is of GPU memory.", nullptr},
    {"direction", [](PyObject* o, void*) { return cast(of(o).direction); }, nullptr, nullptr, nullptr},
    {"status", [](PyObject* o, void*) { return cast(of(o).status.load(std::memory_order_acquire)); }, nullptr, nullptr,
     nullptr},
    {"reason", [](PyObject* o, void*) { return cast(of(o).reason); }, nullptr, nullptr, nullptr},
    {"described", [](PyObject* o, void*) { return described(of(o).what).release().ptr(); }, nullptr, "Dtype, shape, whether on a GPU.",
     nullptr},
    {"other", [](PyObject* o, void*) { return described(of(o).other).release().ptr(); }, nullptr, "Of a mismatch: what the peer has.",
     nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyMethodDef methods[] = {
    {"done", get_done, METH_NOARGS, "Whether it has ended, well or not."},
    {nullptr, nullptr, 0, nullptr},
};

PyType_Slot slots[] = {
    {Py_tp_doc, const_cast<char*>("One message on its way. Made by the engine.")},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_members, members},
    {Py_tp_getset, properties},
    {Py_tp_methods, methods},
    {0, nullptr},
};

PyType_Spec spec = {
    "megatronapp.rdma._native.Message",
    sizeof(MessageObject),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    slots,
};

}  // namespace

py::tuple described(const Descriptor& what) {
    py::tuple shape(what.dimensions);
    for (std::size_t i = 0; i < what.dimensions; ++i) {
        shape[i] = what.shape[i];
    }
    return py::make_tuple(what.dtype, shape, what.memory == Memory::kCuda);
}

void add_message_type(py::module_& module) {
    message_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (message_type == nullptr) {
        throw py::error_already_set();
    }
    module.add_object("Message", reinterpret_cast<PyObject*>(message_type));
}

py::object make_message(py::handle type, const OperationPtr& operation, py::handle engine, py::handle tag,
                        py::handle tensor, py::handle memory) {
    auto* python_type = reinterpret_cast<PyTypeObject*>(type.ptr());
    if (!PyType_Check(type.ptr()) || !PyType_IsSubtype(python_type, message_type)) {
        throw py::type_error("a type of messages is needed");
    }
    PyObject* object = python_type->tp_alloc(python_type, 0);
    if (object == nullptr) {
        throw py::error_already_set();
    }
    MessageObject& self = self_of(object);
    new (&self.operation) OperationPtr(operation);
    self.engine = engine.inc_ref().ptr();
    self.tag = tag.inc_ref().ptr();
    self.tensor = tensor.inc_ref().ptr();
    self.memory = memory.inc_ref().ptr();
    operation->owner = object;
    return py::reinterpret_steal<py::object>(object);
}

const OperationPtr& operation_of(py::handle message) {
    if (!PyObject_TypeCheck(message.ptr(), message_type)) {
        throw py::type_error("no message");
    }
    return self_of(message.ptr()).operation;
}

}  // namespace megatronapp::rdma
