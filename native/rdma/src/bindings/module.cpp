// The border to Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <system_error>

#include "api/errors.h"
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

std::optional<bool> cancel(Engine& engine, py::handle message, double timeout_seconds) {
    const OperationPtr operation = operation_of(message);
    py::gil_scoped_release unlocked;
    return engine.cancel(operation, timeout_seconds);
}

std::optional<std::size_t> wait_any(Engine& engine, const py::list& messages, double timeout_seconds) {
    std::vector<OperationPtr> operations;
    for (const py::handle message : messages) {
        operations.push_back(operation_of(message));
    }
    py::gil_scoped_release unlocked;
    return engine.wait_any(operations, timeout_seconds);
}

py::list probe(Engine& engine, int peer, std::uint64_t mask, std::uint64_t value, double timeout_seconds) {
    std::vector<PendingSend> pending;
    {
        py::gil_scoped_release unlocked;
        pending = engine.probe(peer, mask, value, timeout_seconds);
    }
    py::list found;
    for (const PendingSend& send : pending) {
        found.append(py::make_tuple(send.peer, send.tag, described(send.what), send.what.bytes, send.since_ns));
    }
    return found;
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
        } catch (const Exhausted& error) {
            PyErr_SetString(PyExc_BufferError, error.what());
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
                         std::size_t chunk_bytes, std::size_t receive_pool_bytes, std::uint32_t open_rounds,
                         std::size_t in_flight_bytes) {
                 Options options;
                 options.spin_seconds = spin_seconds;
                 options.heartbeat_seconds = heartbeat_seconds;
                 options.dead_after_seconds = dead_after_seconds;
                 options.checksum = checksum;
                 options.chunk_bytes = chunk_bytes;
                 options.receive_pool_bytes = receive_pool_bytes;
                 options.open_rounds = open_rounds;
                 options.in_flight_bytes = in_flight_bytes;
                 return new Engine(options);
             }),
             py::kw_only(), py::arg("spin_seconds"), py::arg("heartbeat_seconds"), py::arg("dead_after_seconds"),
             py::arg("checksum"), py::arg("chunk_bytes"), py::arg("receive_pool_bytes"), py::arg("open_rounds"),
             py::arg("in_flight_bytes"))
        .def(
            "attach",
            [](Engine& engine, int rank, int socket, int inbound, int outbound, bool cuda_ipc, int own_chunks,
               int peer_chunks, const py::bytes& ucx_address, bool gpu) {
                Link link;
                link.socket = socket;
                link.inbound = inbound;
                link.outbound = outbound;
                link.cuda_ipc = cuda_ipc;
                link.own_chunks = own_chunks;
                link.peer_chunks = peer_chunks;
                link.ucx_address = ucx_address;
                link.gpu = gpu;
                py::gil_scoped_release unlocked;
                engine.attach(rank, link);
            },
            py::kw_only(), py::arg("rank"), py::arg("socket"), py::arg("inbound"), py::arg("outbound"),
            py::arg("cuda_ipc"), py::arg("own_chunks"), py::arg("peer_chunks"), py::arg("ucx_address"), py::arg("gpu"))
        .def("open_ucx", [](Engine& engine) { return py::bytes(engine.open_ucx()); })
        .def("wait_stream", &wait_stream)
        .def("wait_any", &wait_any)
        .def("flush", &Engine::flush, Unlocked())
        .def("cancel", &cancel)
        .def("probe", &probe)
        .def("drain", &drain)
        .def("descriptor", &Engine::descriptor, Unlocked())
        .def("in_flight", &Engine::in_flight, Unlocked())
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
    module.def("protocol", [] { return py::make_tuple(4, sizeof(Message), sizeof(SegmentLayout)); });
    module.def("crc32c", [](const py::bytes& data) {
        const std::string_view view = data;
        return crc32c(view.data(), view.size());
    });
}
