// The border to Python.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <exception>
#include <system_error>

#include "core/engine.h"
#include "lanes/copy.h"

namespace py = pybind11;
using namespace megatronapp::rdma;

namespace {

using Unlocked = py::call_guard<py::gil_scoped_release>;

Descriptor descriptor(std::uint64_t bytes, std::uint8_t dtype, const py::tuple& shape, bool cuda) {
    Descriptor what;
    if (shape.size() > kMaxDimensions) {
        throw std::invalid_argument("a tensor of more than 8 dimensions");
    }
    what.bytes = bytes;
    what.dtype = dtype;
    what.dimensions = static_cast<std::uint8_t>(shape.size());
    what.memory = cuda ? Memory::kCuda : Memory::kHost;
    for (std::size_t i = 0; i < shape.size(); ++i) {
        what.shape[i] = shape[i].cast<std::int64_t>();
    }
    return what;
}

py::tuple described(const Descriptor& what) {
    py::tuple shape(what.dimensions);
    for (std::size_t i = 0; i < what.dimensions; ++i) {
        shape[i] = what.shape[i];
    }
    return py::make_tuple(what.dtype, shape, what.memory == Memory::kCuda, what.bytes);
}

OperationPtr post(Engine& engine, Direction direction, int rank, std::uint64_t tag, std::uintptr_t data,
                  std::uint64_t bytes, std::uint8_t dtype, const py::tuple& shape, bool cuda, std::uintptr_t stream,
                  double deadline_seconds) {
    const Descriptor what = descriptor(bytes, dtype, shape, cuda);
    py::gil_scoped_release unlocked;
    return engine.post(direction, rank, tag, what, reinterpret_cast<char*>(data), reinterpret_cast<void*>(stream),
                       deadline_seconds);
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

    py::class_<Operation, OperationPtr>(module, "Operation")
        .def_readonly("id", &Operation::id)
        .def_readonly("peer", &Operation::peer)
        .def_readonly("tag", &Operation::tag)
        .def_property_readonly("status", [](const Operation& o) { return o.status.load(std::memory_order_acquire); })
        .def_property_readonly("pending", &Operation::pending)
        .def_property_readonly("good", [](const Operation& o) { return o.status.load(std::memory_order_acquire) == Status::kDone; })
        .def_property_readonly("reason", [](const Operation& o) { return o.reason; })
        .def_property_readonly("other", [](const Operation& o) { return described(o.other); })
        .def_property_readonly("done_ns", [](const Operation& o) { return o.done_ns; });

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
        .def("wait", &Engine::wait, Unlocked())
        .def(
            "wait_stream",
            [](Engine& engine, const OperationPtr& operation, std::uintptr_t stream) {
                return engine.wait_stream(operation, reinterpret_cast<void*>(stream));
            },
            Unlocked())
        .def("cancel", &Engine::cancel, Unlocked())
        .def("drain", &Engine::drain, Unlocked())
        .def("descriptor", &Engine::descriptor, Unlocked())
        .def("failed", &Engine::failed, Unlocked())
        .def("abort", &Engine::abort, Unlocked())
        .def("close", &Engine::close, Unlocked());

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
