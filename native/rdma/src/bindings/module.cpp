// The border to Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <system_error>

#include "bindings/calls.h"
#include "bindings/message.h"
#include "bindings/tensor.h"
#include "core/engine.h"
#include "lanes/copy.h"
#include "lanes/leftovers.h"

namespace py = pybind11;
using namespace megatronapp::rdma;

namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

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
    double launch_wait_seconds, std::size_t receive_pool_bytes) {
    Options made;
    made.spin_seconds = spin_seconds;
    made.heartbeat_seconds = heartbeat_seconds;
    made.dead_after_seconds = dead_after_seconds;
    made.checksum = checksum;
    made.chunk_bytes = chunk_bytes;
    made.launch_wait_seconds = launch_wait_seconds;
    made.receive_pool_bytes = receive_pool_bytes;
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

struct DeleteUnlessForked {
    void operator()(Engine* engine) const {
        if (!engine->forked()) {
            delete engine;
        }
    }
};

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

    auto engine = py::class_<Engine, std::unique_ptr<Engine, DeleteUnlessForked>>(module, "Engine");
    add_calls(engine);
    engine
        .def(py::init([](double spin_seconds, double heartbeat_seconds, double dead_after_seconds, bool checksum,
                         std::size_t chunk_bytes, double launch_wait_seconds, std::size_t receive_pool_bytes) {
                 return new Engine(options(spin_seconds, heartbeat_seconds, dead_after_seconds, checksum, chunk_bytes,
                                           launch_wait_seconds, receive_pool_bytes));
             }),
             py::arg("spin_seconds"), py::arg("heartbeat_seconds"), py::arg("dead_after_seconds"), py::arg("checksum"),
             py::arg("chunk_bytes"), py::arg("launch_wait_seconds"), py::arg("receive_pool_bytes"))
        .def(
            "attach",
            [](Engine& engine, int rank, int socket, int inbound, int outbound, bool cuda_ipc, int own_chunks,
               int peer_chunks, const py::bytes& ucx_address, bool staged) {
                Link made = link(socket, inbound, outbound, cuda_ipc, ucx_address, staged);
                made.own_chunks = own_chunks;
                made.peer_chunks = peer_chunks;
                py::gil_scoped_release unlocked;
                engine.attach(rank, made);
            },
            py::arg("rank"), py::arg("socket"), py::arg("inbound"), py::arg("outbound"), py::arg("cuda_ipc"),
            py::arg("own_chunks"), py::arg("peer_chunks"), py::arg("ucx_address"), py::arg("staged"))
        .def("open_ucx", [](Engine& engine) { return py::bytes(engine.open_ucx()); })
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
    module.def("pool_bytes", &GpuPages::made_bytes);
    module.def("end_settled", &end_settled, Unlocked());
    module.def("ucx_version", &ucx_version);
    module.def("protocol", [] { return py::make_tuple(3, sizeof(Message), sizeof(SegmentLayout)); });
    module.def("crc32c", [](const py::bytes& data) {
        const std::string_view view = data;
        return crc32c(view.data(), view.size());
    });
}
