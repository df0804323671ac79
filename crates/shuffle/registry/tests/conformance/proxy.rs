//! A TCP proxy that can be cut: then nothing goes through, and nobody is told.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

pub(crate) struct Proxy {
    pub(crate) port: u16,
    is_cut: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a port");
        let is_cut = Arc::new(AtomicBool::new(false));
        let proxy = Self {
            port: listener.local_addr().expect("it has an address").port(),
            is_cut: is_cut.clone(),
        };
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                for (from, to) in [(&near, &far), (&far, &near)] {
                    let ends =
                        [from, to].map(|end| end.try_clone().expect("there are descriptors"));
                    let is_cut = is_cut.clone();
                    thread::spawn(move || pass(ends, &is_cut));
                }
            }
        });
        proxy
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::SeqCst);
    }
}

fn pass([mut from, mut to]: [TcpStream; 2], is_cut: &AtomicBool) {
    let mut bytes = [0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        while is_cut.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
