//! Abuse of the connection that passes descriptors.

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use support::raw::{Raw, hello_unix, last_words, object, preamble};
use support::{LONG, soon};
use treadle_net::wire::{self, Segment, proto};
use treadle_net::{Options, Peer};
use treadle_transfer::{Message, TransferId};

use super::{Scene, refusal, support};

const SIZE: u64 = 1 << 20;

fn connect_unix(name: &[u8]) -> UnixStream {
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
        ..hello_unix(&raw.hello.descriptors, proto::Role::Descriptors)
    };
    let socket = connect_unix(&raw.hello.descriptors);
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
    wire::encode_descriptors(TransferId(number), segments, &mut frame);
    frame
}

fn segment(length: u64) -> Segment {
    Segment {
        id: 1,
        offset: 0,
        length,
        file: 1,
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

/// Reads what the peer says of memory: what it has unmapped, and what it keeps.
fn released(raw: &mut Raw) -> (Vec<u64>, Vec<u64>) {
    loop {
        let frame = raw.frame().expect("the connection ended");
        if let Ok(Some(wire::Frame::Released { segments, files })) = wire::decode_frame(&frame) {
            return (segments, files);
        }
    }
}

fn fill(file: &OwnedFd, byte: u8) {
    let bytes = vec![byte; SIZE as usize];
    assert_eq!(rustix::io::pwrite(file, &bytes, 0).unwrap(), bytes.len());
}

/// What is sent in a file that the receiver keeps needs no descriptor. Nobody keeps large files.
#[test]
fn a_file_that_is_kept_is_mapped_again() {
    let scene = Scene::new(&Options::default());
    let (mut raw, victim) = scene.attack();
    let channel = open(&raw);
    let file = memfd(SIZE, SealFlags::SHRINK);
    for number in 1..=3 {
        fill(&file, number as u8);
        let segment = Segment {
            id: number,
            ..segment(SIZE)
        };
        if number == 1 {
            raw.write(&object(number, &[SIZE], true, b""));
            pass(
                &channel.stream,
                &announcement(number, &[segment]),
                &[file.as_fd()],
            )
            .unwrap();
        } else {
            raw.write(&support::raw::kept_object(number, &[SIZE], &[segment]));
        }
        let incoming = victim.next(&mut soon()).unwrap();
        incoming.accept(Vec::new()).unwrap();
        incoming.wait(&mut soon()).unwrap();
        let mut received = incoming.take().unwrap();
        let frame = &mut received.frames[0];
        assert!(
            frame
                .as_slice()
                .iter()
                .all(|byte| u64::from(*byte) == number)
        );
        // SAFETY: within the frame, which is this test's.
        unsafe { frame.as_mut_ptr().unwrap().write_bytes(99, 100) };
        drop(received);
        assert_eq!(released(&mut raw), (vec![number], vec![1]));
    }
    assert_eq!(victim.stats().bytes_shared, 3 * SIZE);

    let file = memfd(5 << 20, SealFlags::SHRINK);
    let large = Segment {
        file: 2,
        ..segment(SIZE)
    };
    raw.write(&object(4, &[SIZE], true, b""));
    pass(&channel.stream, &announcement(4, &[large]), &[file.as_fd()]).unwrap();
    let incoming = victim.next(&mut soon()).unwrap();
    incoming.accept(Vec::new()).unwrap();
    incoming.wait(&mut soon()).unwrap();
    drop(incoming.take().unwrap());
    assert_eq!(released(&mut raw), (vec![1], vec![]));
    scene.is_well();
}

/// What is said to be in a file, and is not, or in one that is not kept, comes in bytes.
#[test]
fn what_is_not_in_a_file_that_is_kept_comes_in_bytes() {
    let scene = Scene::new(&Options::default());
    let (mut raw, victim) = scene.attack();
    let channel = open(&raw);
    let file = memfd(SIZE, SealFlags::SHRINK);
    raw.write(&object(1, &[SIZE], true, b""));
    pass(
        &channel.stream,
        &announcement(1, &[segment(SIZE)]),
        &[file.as_fd()],
    )
    .unwrap();
    let incoming = victim.next(&mut soon()).unwrap();
    incoming.accept(Vec::new()).unwrap();
    incoming.wait(&mut soon()).unwrap();
    drop(incoming.take().unwrap());
    assert_eq!(released(&mut raw), (vec![1], vec![1]));
    let cases = [
        Segment {
            file: 2,
            ..segment(SIZE)
        },
        segment(SIZE - 1),
        segment(u64::MAX),
        Segment {
            offset: 1,
            ..segment(SIZE)
        },
    ];
    for (number, case) in (2..).zip(cases) {
        raw.write(&support::raw::kept_object(number, &[SIZE], &[case]));
        comes_in_bytes(&mut raw, &victim, &scene, number as u32, number);
    }
    assert!(victim.ended().is_none());
    scene.is_well();
}

/// A sender passes a descriptor unless the peer says that it keeps the file, and again when it
/// turns out not to have it.
#[test]
fn a_sender_passes_what_the_peer_does_not_keep() {
    let scene = Scene::new(&Options::default());
    let (mut raw, victim) = scene.attack();
    let mut channel = open(&raw);
    // It maps what comes.
    channel.write(&announcement(0, &[]));
    support::eventually("it shares memory", || victim.shares_memory());
    let segments = treadle_memory::Segments::global();
    let start = segments.allocate(SIZE as usize).unwrap();
    segments.keep_constant(start);
    // SAFETY: just allocated, and never freed.
    let region = unsafe { std::slice::from_raw_parts(start.as_ptr(), SIZE as usize) };
    let offered = |raw: &mut Raw| {
        victim.send(1, &[region.into()]).unwrap();
        loop {
            let frame = raw.frame().expect("the connection ended");
            if let Ok(Some(wire::Frame::Object(header, _))) = wire::decode_frame(&frame) {
                assert!(header.shared);
                return header;
            }
        }
    };
    let passed = |channel: &mut Raw<UnixStream>| loop {
        let frame = channel.frame().expect("the connection ended");
        if let Ok(Some(wire::Frame::Descriptors(object, segments))) = wire::decode_frame(&frame)
            && object != TransferId(0)
        {
            return segments[0];
        }
    };
    let tell = |raw: &mut Raw, segment: Segment, files: Vec<u64>| {
        let mut frame = Vec::new();
        wire::encode_released(vec![segment.id], files, &mut frame);
        raw.write(&frame);
    };
    // The files that it does not keep are passed each time.
    let first = offered(&mut raw);
    assert_eq!(first.segments, []);
    let segment = passed(&mut channel);
    raw.tell(&Message::Placed {
        object: first.object,
    });
    tell(&mut raw, segment, vec![]);
    let second = offered(&mut raw);
    assert_eq!((second.segments, passed(&mut channel)), (vec![], segment));
    raw.tell(&Message::Placed {
        object: second.object,
    });
    tell(&mut raw, segment, vec![segment.file]);
    support::eventually("it is not passed any more", || {
        let next = offered(&mut raw);
        if next.segments.is_empty() {
            passed(&mut channel);
        }
        next.segments == [segment]
    });
    // The peer wants the bytes: it has lost the file.
    let last = offered(&mut raw);
    assert_eq!(last.segments, [segment]);
    raw.tell(&Message::Accept {
        object: last.object,
    });
    support::eventually("it is passed again", || {
        let next = offered(&mut raw);
        next.segments.is_empty() && passed(&mut channel) == segment
    });
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

/// What a Unix socket says to somebody who wants a connection of this kind.
fn answer(raw: &Raw, role: proto::Role) -> String {
    let hello = proto::Hello {
        session: raw.hello.session,
        ..hello_unix(&raw.hello.descriptors, role)
    };
    let mut socket = connect_unix(&raw.hello.descriptors);
    socket.write_all(&preamble(&hello)).unwrap();
    refusal(&last_words(&mut socket))
}

#[test]
fn no_stripes_come_this_way() {
    let scene = Scene::new(&Options::default());
    let (raw, victim) = scene.attack();
    for role in [proto::Role::StripeToClient, proto::Role::StripeToListener] {
        assert!(answer(&raw, role).contains("cannot be used for that"));
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
        let mut socket = connect_unix(&name);
        let _ = socket.write_all(&preamble(&hello_unix(&name, proto::Role::Descriptors)));
        last_words(&mut socket)
    });
    assert_eq!(words.join().unwrap(), b"");
    scene.is_well();
}
