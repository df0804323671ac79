//! Abuse of the connection that passes descriptors.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use support::raw::{Raw, hello, last_words, object, preamble};
use support::{LONG, soon};
use treadle_net::wire::{self, Segment, proto};
use treadle_net::{Options, Peer};
use treadle_transfer::{Message, ObjectId};

use super::{Scene, refusal, support};

const SIZE: u64 = 1 << 20;

fn knock(name: &[u8]) -> UnixStream {
    let address = SocketAddr::from_abstract_name(name).unwrap();
    let socket = UnixStream::connect_addr(&address).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket.set_write_timeout(Some(LONG)).unwrap();
    socket
}

/// The descriptor connection of this pair.
fn open(raw: &Raw) -> Raw<UnixStream> {
    let hello = proto::Hello {
        session: raw.hello.session,
        ..hello(proto::Role::Descriptors)
    };
    let socket = knock(&raw.hello.descriptors);
    Raw::open(socket, &hello, &raw.session_secret).unwrap()
}

fn pass(
    socket: &UnixStream,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(descriptors)));
    let flags = SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)
}

fn announcement(number: u64, segments: &[Segment]) -> Vec<u8> {
    let mut frame = Vec::new();
    wire::encode_descriptors(ObjectId(number), segments, &mut frame);
    frame
}

fn segment(length: u64) -> Segment {
    Segment {
        id: 1,
        offset: 0,
        length,
    }
}

fn memfd(size: u64, seals: SealFlags) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("test", flags).unwrap();
    ftruncate(&file, size).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file
}

/// The victim receives an object that was offered as shared memory in bytes.
fn comes_in_bytes(raw: &mut Raw, victim: &Peer, scene: &Scene, stripe: u32, number: u64) {
    let incoming = victim.next(&mut soon()).unwrap();
    incoming.accept(Vec::new()).unwrap();
    raw.until(|message| matches!(message, Message::Accept { .. }));
    let mut stripe = raw.stripe(scene.address(), stripe);
    let piece = vec![7; 256 * 1024];
    for part in 0..4 {
        stripe.write(&support::raw::extent(number, part * (256 << 10), &piece));
    }
    incoming.wait(&mut soon()).unwrap();
    let received = incoming.take().unwrap();
    assert!(received.frames[0].as_slice().iter().all(|byte| *byte == 7));
}

/// What cannot be mapped safely comes in bytes, whether it is announced before or after the header.
#[test]
fn unsafe_descriptors_are_not_mapped() {
    let scene = Scene::new(&Options::default());
    let null = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let file = || OwnedFd::from(tempfile::tempfile().unwrap());
    let (unsealed, sealed) = (SealFlags::empty(), SealFlags::SHRINK);
    let one = vec![segment(SIZE)];
    let far = Segment {
        offset: u64::MAX - 5,
        ..segment(SIZE)
    };
    let cases = [
        ("a device", null(), one.clone()),
        ("a file", file(), one.clone()),
        ("not sealed", memfd(SIZE, unsealed), one.clone()),
        ("short", memfd(SIZE - 1, sealed), one.clone()),
        ("far away", memfd(SIZE, sealed), vec![far]),
        ("endless", memfd(SIZE, sealed), vec![segment(u64::MAX)]),
        (
            "another length",
            memfd(SIZE, sealed),
            vec![segment(SIZE / 2)],
        ),
        ("no segment", memfd(SIZE, sealed), vec![]),
    ];
    let (mut raw, victim) = scene.attack();
    let mut number = 0;
    for (name, file, segments) in cases {
        for early in [true, false] {
            number += 1;
            let channel = open(&raw);
            let announce = || {
                let bytes = announcement(number, &segments);
                pass(&channel.stream, &bytes, &[file.as_fd()]).unwrap();
            };
            let header = object(number, &[SIZE], true, b"");
            if early {
                announce();
                raw.write(&header);
            } else {
                raw.write(&header);
                announce();
            }
            comes_in_bytes(&mut raw, &victim, &scene, number as u32, number);
            assert!(victim.ended().is_none(), "{name}");
        }
    }
    assert_eq!(victim.stats().bytes_shared, 0);
    scene.is_well();
}

type Attack<'a> = &'a dyn Fn(&mut Raw<UnixStream>);

/// A peer that breaks the rules here loses this connection, and its pair goes on without.
#[test]
fn the_connection_is_closed_and_the_pair_goes_on() {
    let scene = Scene::new(&Options::default());
    let null = std::fs::File::open("/dev/null").unwrap();
    let many: Vec<BorrowedFd<'_>> = (0..253).map(|_| null.as_fd()).collect();
    let ping = {
        let mut frame = Vec::new();
        wire::encode_message(&Message::Ping { token: 1 }, &mut frame);
        frame
    };
    let (mut raw, victim) = scene.attack();
    let mut number = 0;
    let attacks: [Attack<'_>; 6] = [
        // Descriptors without a message.
        &|channel| {
            let start = &announcement(9, &[segment(1)])[..5];
            for byte in start {
                if pass(&channel.stream, &[*byte], &many[..60]).is_err() {
                    return;
                }
            }
        },
        // More than fit.
        &|channel| {
            let bytes = announcement(9, &[segment(1); 253]);
            let _ = pass(&channel.stream, &bytes, &many);
        },
        // Segments without descriptors.
        &|channel| channel.write(&announcement(9, &[segment(1)])),
        // Other messages.
        &|channel| channel.write(&ping),
        &|channel| channel.write(b"GET / HTTP/1.1\r\n\r\n"),
        &|channel| channel.write(&[0xff; 12]),
    ];
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    for attack in attacks {
        let mut channel = open(&raw);
        attack(&mut channel);
        last_words(&mut channel.stream);
        drop(channel);
        number += 1;
        raw.write(&object(number, &[SIZE], true, b""));
        comes_in_bytes(&mut raw, &victim, &scene, number as u32, number);
    }
    assert!(victim.ended().is_none());
    support::eventually("the descriptors are closed", || descriptors() < 200);
    scene.is_well();
}

/// Descriptors of objects that are never offered do not pile up.
#[test]
fn early_descriptors_are_limited() {
    let scene = Scene::new(&Options::default());
    let (mut raw, victim) = scene.attack();
    let channel = open(&raw);
    let file = memfd(SIZE, SealFlags::SHRINK);
    let closed = (2..5000).any(|number| {
        let bytes = announcement(number, &[segment(SIZE)]);
        pass(&channel.stream, &bytes, &[file.as_fd()]).is_err()
    });
    assert!(closed, "all of them are kept");
    raw.write(&object(1, &[SIZE], true, b""));
    comes_in_bytes(&mut raw, &victim, &scene, 1, 1);
    scene.is_well();
}

#[test]
fn only_descriptor_connections_come_this_way() {
    let scene = Scene::new(&Options::default());
    let (raw, victim) = scene.attack();
    for role in [proto::Role::Control, proto::Role::StripeToListener] {
        let hello = proto::Hello {
            session: raw.hello.session,
            ..hello(role)
        };
        let mut socket = knock(&raw.hello.descriptors);
        socket.write_all(&preamble(&hello)).unwrap();
        let words = last_words(&mut socket);
        assert!(refusal(&words).contains("cannot be used for that"));
    }
    assert!(victim.ended().is_none());
    scene.is_well();
}

/// Another user is sent away before a word is said. Only root can play another user.
#[test]
fn other_users_are_sent_away() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let scene = Scene::new(&Options::default());
    let (raw, _victim) = scene.attack();
    let name = raw.hello.descriptors.clone();
    let words = std::thread::spawn(move || {
        // Of this thread alone.
        rustix::thread::set_thread_uid(rustix::process::Uid::from_raw(65534)).unwrap();
        let mut socket = knock(&name);
        let _ = socket.write_all(&preamble(&hello(proto::Role::Descriptors)));
        last_words(&mut socket)
    });
    assert_eq!(words.join().unwrap(), b"");
    scene.is_well();
}
