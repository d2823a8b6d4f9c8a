// The module: the recorder's type, and what tests need of it.
#include "bindings.h"
#include "chunk.h"
#include "host_line.h"

namespace megatronapp::scan {

namespace {

PyObject* place_brackets(PyObject*, PyObject* brackets) {
    return guarded([&] {
        HostLine line;
        PyObject* sequence = PySequence_Fast(brackets, "brackets must be a sequence");
        PyObject* placed = sequence == nullptr ? nullptr : PyList_New(0);
        for (Py_ssize_t i = 0; placed != nullptr && i < PySequence_Fast_GET_SIZE(sequence); ++i) {
            long long device_ns, before_ns, after_ns;
            PyObject* entry = nullptr;
            if (PyArg_ParseTuple(PySequence_Fast_GET_ITEM(sequence, i), "LLL", &device_ns, &before_ns, &after_ns)) {
                const Placed event = line.place({device_ns, before_ns, after_ns});
                entry = Py_BuildValue(
                    "LLd", static_cast<long long>(event.host_ns), static_cast<long long>(event.error_ns), event.drift);
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

}  // namespace megatronapp::scan

PyMODINIT_FUNC PyInit__native() {
    using namespace megatronapp::scan;
    PyObject* module = PyModule_Create(&module_definition);
    if (module == nullptr) {
        return nullptr;
    }
    PyObject* recorder_type = make_recorder_type();
    PyObject* names = column_names();
    if (recorder_type == nullptr || names == nullptr || PyModule_AddObjectRef(module, "Recorder", recorder_type) < 0 ||
        PyModule_AddObjectRef(module, "COLUMNS", names) < 0) {
        Py_DECREF(module);
        return nullptr;
    }
    return module;
}
