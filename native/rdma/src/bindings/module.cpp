// The border to Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <system_error>

#include "bindings/message.h"
#include "bindings/tensor.h"
#include "core/engine.h"
#include "core/window.h"
#include "lanes/copy.h"

namespace py = pybind11;
using namespace megatronapp::rdma;

namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

constexpr std::uint64_t kFieldMax[] = {15, 255, (1 << 20) - 1, 0, 15};  // of a tag, save its step

// 64 bits: kind 4 | step 12 | chunk 8 | microbatch 20 | slot 4 | source rank 16.
std::uint64_t pack_tag(const py::tuple& tag, int source) {
    std::uint64_t fields[5];
    bool fits = tag.size() == 5 && source >= 0 && source <= 0xffff;
    for (std::size_t i = 0; fits && i < 5; ++i) {
        const long long value = PyLong_AsLongLong(PyTuple_GET_ITEM(tag.ptr(), static_cast<Py_ssize_t>(i)));
        if (value == -1 && PyErr_Occurred() != nullptr) {
            throw py::error_already_set();
        }
        fields[i] = static_cast<std::uint64_t>(value);
        fits = i == 3 || fields[i] <= kFieldMax[i];
    }
    if (!fits) {
        throw py::value_error("does not fit");
    }
    const auto [kind, chunk, microbatch, step, slot] = fields;
    return kind << 60 | (step % kSteps) << kStepShift | chunk << 40 | microbatch << 20 | slot << 16 |
           static_cast<std::uint64_t>(source);
}

// A message of `type`, in the set `open` before anybody can be told that it has ended; None for a tensor that can't be
// moved.
py::object post(Engine& engine, py::handle type, py::handle owner, py::set open, Direction direction, int peer,
                int source, const py::tuple& tag, py::handle tensor, std::uintptr_t stream, double deadline_seconds) {
    Tensor read;
    if (!read_tensor(tensor, read)) {
        return py::none();
    }
    const auto operation = std::make_shared<Operation>();
    operation->direction = direction;
    operation->peer = peer;
    operation->tag = pack_tag(tag, source);
    operation->what = read.what;
    operation->data = read.data;
    operation->stream = reinterpret_cast<void*>(stream);
    const py::object kept = without_gradient(tensor);
    py::object message = make_message(type, operation, owner, tag, kept, storage_of(kept));
    open.add(message);
    try {
        py::gil_scoped_release unlocked;
        engine.post(operation, deadline_seconds);
    } catch (...) {
        PySet_Discard(open.ptr(), message.ptr());
        throw;
    }
    return message;
}

bool wait(Engine& engine, py::handle message, double timeout_seconds) {
    const OperationPtr operation = operation_of(message);
    py::gil_scoped_release unlocked;
    return engine.wait(operation, timeout_seconds);
}

bool wait_stream(Engine& engine, py::handle message, std::uintptr_t stream) {
    const OperationPtr operation = operation_of(message);
    py::gil_scoped_release unlocked;
    return engine.wait_stream(operation, reinterpret_cast<void*>(stream));
}

void cancel(Engine& engine, py::handle message) {
    const OperationPtr operation = operation_of(message);
    py::gil_scoped_release unlocked;
    engine.cancel(operation);
}

// Of those that nobody holds any more there is nothing to tell.
py::list drain(Engine& engine) {
    std::vector<OperationPtr> ended;
    {
        py::gil_scoped_release unlocked;
        ended = engine.drain();
    }
    py::list messages;
    for (const OperationPtr& operation : ended) {
        if (operation->owner != nullptr) {
            messages.append(py::handle(static_cast<PyObject*>(operation->owner)));
        }
    }
    return messages;
}

Options options(
    double spin_seconds, double heartbeat_seconds, double dead_after_seconds, bool checksum, std::size_t chunk_bytes,
    double launch_wait_seconds) {
    Options made;
    made.spin_seconds = spin_seconds;
    made.heartbeat_seconds = heartbeat_seconds;
    made.dead_after_seconds = dead_after_seconds;
    made.checksum = checksum;
    made.chunk_bytes = chunk_bytes;
    made.launch_wait_seconds = launch_wait_seconds;
    return made;
}

Link link(int socket, int inbound, int outbound, bool cuda_ipc, std::string ucx_address, bool staged) {
    Link made;
    made.socket = socket;
    made.inbound = inbound;
    made.outbound = outbound;
    made.cuda_ipc = cuda_ipc;
    made.ucx_address = std::move(ucx_address);
    made.staged = staged;
    return made;
}

std::string ucx_version() {
    unsigned major = 0, minor = 0, patch = 0;
    UcxLibrary::get().version(&major, &minor, &patch);
    return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(patch);
}

}  // namespace

PYBIND11_MODULE(_native, module) {
    module.doc() = "The engine and its lanes.";

    py::register_exception_translator([](std::exception_ptr pointer) {
        try {
            std::rethrow_exception(pointer);
        } catch (const std::system_error& error) {
            const py::object arguments = py::make_tuple(error.code().value(), error.what());
            PyErr_SetObject(PyExc_OSError, arguments.ptr());
        }
    });

    py::enum_<Status>(module, "Status")
        .value("PENDING", Status::kPending)
        .value("DONE", Status::kDone)
        .value("PEER_LOST", Status::kPeerLost)
        .value("TIMED_OUT", Status::kTimedOut)
        .value("MISMATCH", Status::kMismatch)
        .value("CANCELLED", Status::kCancelled)
        .value("ABORTED", Status::kAborted)
        .value("CORRUPT", Status::kCorrupt);

    py::enum_<Direction>(module, "Direction").value("SEND", Direction::kSend).value("RECEIVE", Direction::kReceive);

    add_message_type(module);

    py::class_<Engine>(module, "Engine")
        .def(py::init([](double spin_seconds, double heartbeat_seconds, double dead_after_seconds, bool checksum,
                         std::size_t chunk_bytes, double launch_wait_seconds) {
                 return new Engine(options(spin_seconds, heartbeat_seconds, dead_after_seconds, checksum, chunk_bytes,
                                           launch_wait_seconds));
             }),
             py::arg("spin_seconds"), py::arg("heartbeat_seconds"), py::arg("dead_after_seconds"), py::arg("checksum"),
             py::arg("chunk_bytes"), py::arg("launch_wait_seconds"))
        .def(
            "attach",
            [](Engine& engine, int rank, int socket, int inbound, int outbound, bool cuda_ipc,
               const py::bytes& ucx_address, bool staged) {
                const Link made = link(socket, inbound, outbound, cuda_ipc, ucx_address, staged);
                py::gil_scoped_release unlocked;
                engine.attach(rank, made);
            },
            py::arg("rank"), py::arg("socket"), py::arg("inbound"), py::arg("outbound"), py::arg("cuda_ipc"),
            py::arg("ucx_address"), py::arg("staged"))
        .def("open_ucx", [](Engine& engine) { return py::bytes(engine.open_ucx()); })
        .def("post", &post)
        .def("wait", &wait)
        .def("wait_stream", &wait_stream)
        .def("cancel", &cancel)
        .def("drain", &drain)
        .def("descriptor", &Engine::descriptor, Unlocked())
        .def("failed", &Engine::failed, Unlocked())
        .def("abort", &Engine::abort, Unlocked())
        .def("close", &Engine::close, Unlocked());

    module.def("pack_tag", &pack_tag);
    module.def("dtype_names", &dtype_names);
    module.def("make_segment", &Segment::make);
    module.def("check_cuda_driver", [] { CudaDriver::get(); });
    module.def("is_shareable", &is_shareable);
    module.def("ucx_version", &ucx_version);
    module.def("protocol", [] { return py::make_tuple(2, sizeof(Message), sizeof(SegmentLayout)); });
    module.def("crc32c", [](const py::bytes& data) {
        const std::string_view view = data;
        return crc32c(view.data(), view.size());
    });
}
