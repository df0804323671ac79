//! A connection that brings little at a time.

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

/// Bytes that come at once, and the pause after them.
const SOME: usize = 16 << 10;
const PAUSE: Duration = Duration::from_millis(15);

/// Passes connections on to an address. What comes back from there comes slowly.
pub(super) fn pass_on(listener: TcpListener, target: String) {
    thread::spawn(move || {
        for near in listener.incoming() {
            let (near, far) = (near.unwrap(), TcpStream::connect(&target).unwrap());
            let (to, from) = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || copy(from, to, Duration::ZERO));
            thread::spawn(move || copy(far, near, PAUSE));
        }
    });
}

fn copy(mut from: TcpStream, mut to: TcpStream, pause: Duration) -> io::Result<()> {
    let mut some = vec![0; SOME];
    loop {
        let length = from.read(&mut some)?;
        if length == 0 {
            return to.shutdown(std::net::Shutdown::Write);
        }
        to.write_all(&some[..length])?;
        if length == SOME {
            thread::sleep(pause);
        }
    }
}
