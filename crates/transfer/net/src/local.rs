//! Processes of one host and user: they meet through Unix sockets with abstract names, and may share
//! memory.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::OnceLock;

use socket2::{Domain, SockAddr, Socket, Type};
use treadle_security::secret::random;

/// Identifies this kernel and user: who has the same may share memory with us.
pub(crate) fn host() -> Vec<u8> {
    let boot = kernel();
    if boot.is_empty() {
        return Vec::new();
    }
    let user = rustix::process::geteuid().as_raw();
    [boot, &user.to_le_bytes()].concat()
}

/// Identifies this kernel; empty where it does not say.
fn kernel() -> &'static [u8] {
    static BOOT: OnceLock<Vec<u8>> = OnceLock::new();
    BOOT.get_or_init(|| std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default())
}

/// Identifies the loopback interface of this process among those of all machines: each network
/// namespace of a kernel has its own.
pub(crate) fn loopback() -> Vec<u8> {
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    [kernel(), namespace.as_os_str().as_bytes()].concat()
}

/// The name of the Unix socket of whoever listens at this address of the loopback interface: both
/// belong to one network namespace.
pub(crate) fn name_of(listener: SocketAddr) -> Vec<u8> {
    format!("treadle-{listener}").into_bytes()
}

/// Connects to a listener at the loopback interface through its Unix socket: a message takes less of
/// the processor than over TCP. `None`: there is none, it is somebody else's, or busy.
pub(crate) fn connect_to(listener: SocketAddr) -> Option<UnixStream> {
    if !listener.ip().to_canonical().is_loopback() {
        return None;
    }
    let socket = connect(&name_of(listener)).ok()?;
    own_process(&socket).map(|_| socket)
}

/// Connects to the Unix socket of a name; does not wait where its backlog is full.
pub(crate) fn connect(name: &[u8]) -> io::Result<UnixStream> {
    let path = [&[0], name].concat();
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&SockAddr::unix(OsStr::from_bytes(&path))?)?;
    Ok(socket.into())
}

/// The process at the other end, if it is of the same user; 0 where this one cannot see it.
pub(crate) fn own_process(socket: &UnixStream) -> Option<i32> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let mut len = size_of_val(&peer) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes of a structure that any bytes are valid for.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    (failed == 0 && peer.uid == rustix::process::geteuid().as_raw()).then_some(peer.pid)
}

/// The Unix socket of a listener, and its name: the one that clients of this host try, if they may
/// and nobody has taken it.
pub(crate) fn bind(socket: SocketAddr, may_ask: bool) -> io::Result<(Vec<u8>, UnixListener)> {
    let known = name_of(socket);
    if may_ask && let Ok(unix) = bind_abstract(&known) {
        return Ok((known, unix));
    }
    let name = format!("treadle-{}", u128::from_le_bytes(random())).into_bytes();
    bind_abstract(&name).map(|unix| (name, unix))
}

fn bind_abstract(name: &[u8]) -> io::Result<UnixListener> {
    let address = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    let listener = UnixListener::bind_addr(&address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}
