//! A nonblocking socket, plain or with TLS.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;

use treadle_security::tls::Tls;

/// The bytes of one connection. Calls never wait: they end with `WouldBlock`.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Tls(TcpStream, Box<Tls>),
    Unix(UnixStream),
}

impl Stream {
    /// Reads into buffers; 0 is the orderly end.
    pub(crate) fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.read_vectored(into),
            Self::Tls(socket, tls) => tls.read_vectored(socket, into),
            Self::Unix(socket) => socket.read_vectored(into),
        }
    }

    /// Reads into one buffer.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(into)])
    }

    /// Takes bytes; with TLS some of them may still wait here, see `wants_write`.
    pub(crate) fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Tcp(socket) => socket.write_vectored(from),
            Self::Tls(socket, tls) => tls.write_vectored(socket, from),
            Self::Unix(socket) => socket.write_vectored(from),
        }
    }

    /// Sends what waits here. `true` when nothing does any more.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Ok(true),
            Self::Tls(socket, tls) => tls.flush(socket),
        }
    }

    /// Whether bytes wait here for the socket to be writable.
    pub(crate) fn wants_write(&self) -> bool {
        matches!(self, Self::Tls(_, tls) if tls.wants_write())
    }

    /// Whether a read gives something although the socket is not readable.
    pub(crate) fn has_pending(&mut self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            Self::Tls(_, tls) => tls.has_pending_plaintext(),
        }
    }

    /// What identifies this channel and no other, once a byte was read from it: both ends know it,
    /// and nobody in between. Only TLS has it.
    pub(crate) fn binding(&self) -> Option<[u8; 32]> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => None,
            Self::Tls(_, tls) => tls.binding(),
        }
    }

    /// Bytes that TCP has sent again so far, in whole segments; none where there is no network.
    pub(crate) fn sent_again(&self) -> Option<u64> {
        let (Self::Tcp(socket) | Self::Tls(socket, _)) = self else {
            return None;
        };
        // SAFETY: all-zero is a valid value of this struct of numbers.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = libc::socklen_t::try_from(size_of_val(&info)).ok()?;
        // SAFETY: the kernel writes at most `length` bytes into the struct, and their number.
        let failed = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        let bytes = u64::from(info.tcpi_total_retrans) * u64::from(info.tcpi_snd_mss);
        (failed == 0).then_some(bytes)
    }

    /// Says that nothing more comes. `true` when that is sent.
    pub(crate) fn close(&mut self) -> io::Result<bool> {
        match self {
            Self::Tcp(socket) => socket.shutdown(Shutdown::Write)?,
            Self::Unix(socket) => socket.shutdown(Shutdown::Write)?,
            Self::Tls(socket, tls) => {
                if !tls.close(socket)? {
                    return Ok(false);
                }
                socket.shutdown(Shutdown::Write)?;
            }
        }
        Ok(true)
    }

    /// The error with which a connection attempt ended, if it did.
    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        match self {
            Self::Tcp(socket) | Self::Tls(socket, _) => socket.take_error(),
            Self::Unix(socket) => socket.take_error(),
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) | Self::Tls(socket, _) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

/// A socket is writable while fewer bytes than this wait in it to be sent.
const UNSENT: u32 = 256 * 1024;

/// Settings of every TCP socket.
pub(crate) fn tune(socket: &TcpStream, remote: IpAddr) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    socket.set_nodelay(true)?;
    // What a socket has taken cannot go by another stripe any more.
    socket2::SockRef::from(socket).set_tcp_notsent_lowat(UNSENT)?;
    if remote.to_canonical().is_loopback() {
        // BBR, a default on many machines, paces even where there is no network: it halves the rate
        // of a socket on the loopback interface (docs/internals/transfer.md). Best effort.
        let _ = rustix::net::sockopt::set_tcp_congestion(socket, "cubic");
    }
    Ok(())
}

/// Whether an error only says that there is nothing to do now.
pub(crate) fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
