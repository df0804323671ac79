//! Two processes: a sender that is killed leaves nothing behind, and its receiver keeps its bytes.
#![cfg(target_os = "linux")]

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;
use treadle_memory::{Mapping, Segments};

const LEN: usize = 5 << 20;
const OFFSET: usize = 12_345;

fn byte(i: usize) -> u8 {
    (i % 251) as u8
}

/// Not a test: the sender, when the test below runs it. Its standard input is the socket.
#[test]
#[ignore = "the other process of the test below"]
fn sender() {
    let segments = Segments::global();
    let start = segments.allocate(LEN).unwrap();
    // SAFETY: just allocated.
    let bytes = unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), LEN) };
    for (i, slot) in bytes.iter_mut().enumerate() {
        *slot = byte(i);
    }
    let export = segments
        .export(bytes[OFFSET..].as_ptr(), LEN - OFFSET)
        .unwrap();
    bytes.fill(0);

    let socket = std::io::stdin();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [export.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let message = [export.offset, export.length]
        .map(u64::to_le_bytes)
        .concat();
    sendmsg(
        socket.as_fd(),
        &[IoSlice::new(&message)],
        &mut control,
        SendFlags::empty(),
    )
    .unwrap();
    // Killed here; if not, the socket ends with the receiver.
    let _ = rustix::io::read(socket.as_fd(), &mut [0_u8; 1]);
}

fn receive(socket: &UnixStream) -> (OwnedFd, u64, u64) {
    let mut message = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut message)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )
    .unwrap();
    assert_eq!(
        (received.bytes, received.flags),
        (16, ReturnFlags::CMSG_CLOEXEC)
    );
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
        _ => Vec::new(),
    });
    let descriptor = descriptors.next().expect("a descriptor");
    let number = |at: usize| u64::from_le_bytes(message[at..at + 8].try_into().unwrap());
    (descriptor, number(0), number(8))
}

fn ours_among(entries: &str) -> usize {
    entries.matches("memfd:treadle").count()
}

fn open_segments() -> usize {
    std::fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| ours_among(&target.to_string_lossy()) > 0)
        .count()
}

fn mapped_segments() -> usize {
    ours_among(&std::fs::read_to_string("/proc/self/maps").unwrap())
}

fn named_files() -> Vec<std::ffi::OsString> {
    // A container may have none.
    let Ok(entries) = std::fs::read_dir("/dev/shm") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .filter(|name| name.to_string_lossy().contains("treadle"))
        .collect()
}

#[test]
fn a_killed_sender_leaves_its_bytes_and_nothing_else() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    ours.set_read_timeout(Some(Duration::from_secs(30)))
        .unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sender", "--ignored", "--nocapture"])
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (descriptor, offset, length) = receive(&ours);
    let mapping = Mapping::new(descriptor, offset, length).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();

    assert_eq!(mapping.len(), LEN - OFFSET);
    let bytes = mapping.as_slice().iter();
    assert!((OFFSET..).zip(bytes).all(|(i, &b)| b == byte(i)));
    assert_eq!(named_files(), Vec::<std::ffi::OsString>::new());
    // The descriptor is kept, to hand the memory on.
    assert_eq!((open_segments(), mapped_segments()), (1, 1));
    drop(mapping);
    assert_eq!((open_segments(), mapped_segments()), (0, 0));
}
