//! Pairs of peers in one process, over real sockets.

mod support;

use bytes::Bytes;
use support::{Pair, body, never, soon};
use treadle_net::{Config, Failure, NetError, Options, PairEnd, Target};

#[test]
fn small_objects_arrive_in_order() {
    let pair = Pair::new(&Options::default());
    for number in 0..1000u32 {
        let frames = [Bytes::from(number.to_le_bytes().to_vec()), Bytes::new()];
        pair.client.send(number, &frames).unwrap();
    }
    for number in 0..1000u32 {
        let received = pair.receive();
        assert_eq!(received.kind, number);
        assert_eq!(received.frames[0].as_slice(), number.to_le_bytes());
        assert!(received.frames[1].is_empty());
    }
}

#[test]
fn large_objects_arrive_in_both_directions() {
    let pair = Pair::new(&Options::default());
    for size in [64 << 10, (64 << 10) + 1, 256 << 10, 3_000_001, 40 << 20] {
        let data = body(size);
        let sending = pair
            .client
            .send(7, &[Bytes::from_static(b"meta"), data.clone()])
            .unwrap();
        let received = pair.receive();
        assert_eq!(received.kind, 7);
        assert_eq!(received.frames[0].as_slice(), b"meta");
        assert!(received.frames[1].as_slice() == data, "{size}");
        assert_eq!(received.frames[1].as_ptr() as usize % 64, 0);
        sending.wait(&mut soon()).unwrap();

        let sending = pair.server.send(8, std::slice::from_ref(&data)).unwrap();
        let incoming = pair.client.next(&mut soon()).unwrap();
        incoming.accept(Vec::new()).unwrap();
        incoming.wait(&mut soon()).unwrap();
        assert!(
            incoming.take().unwrap().frames[0].as_slice() == data,
            "{size}"
        );
        sending.wait(&mut soon()).unwrap();
    }
}

#[test]
fn many_tiny_frames_arrive() {
    let pair = Pair::new(&Options::default());
    let frames: Vec<Bytes> = (0..10_000u32).map(|n| body(n as usize % 50)).collect();
    pair.client.send(1, &frames).unwrap();
    let received = pair.receive();
    assert_eq!(received.frames.len(), frames.len());
    for (got, sent) in received.frames.iter().zip(&frames) {
        assert_eq!(got.as_slice(), sent);
    }
}

#[test]
fn a_frame_is_received_into_its_target() {
    let options = Options {
        pair: Config {
            prefetch: 0,
            ..Config::default()
        },
        ..Options::default()
    };
    let pair = Pair::new(&options);
    let data = body(5_000_000);
    let sending = pair
        .client
        .send(1, &[Bytes::from_static(b"m"), data.clone()])
        .unwrap();
    let incoming = pair.server.next(&mut soon()).unwrap();
    assert_eq!(incoming.header(), (1, vec![1, 5_000_000]));
    assert_eq!(incoming.inline_frame(0).unwrap(), "m");
    let mut memory = vec![0u8; 5_000_000];
    // SAFETY: the vector outlives the transfer, and is not used meanwhile.
    let mut target = |length| unsafe { Target::new(memory.as_mut_ptr(), length, Box::new(())) };
    let wrong = incoming.accept(vec![None, Some(target(4_999_999))]);
    assert!(matches!(wrong, Err(NetError::Target { .. })));
    let back = incoming
        .accept(vec![None, Some(target(5_000_000))])
        .unwrap();
    assert!(back.iter().all(Option::is_none), "the target was used");
    incoming.wait(&mut soon()).unwrap();
    sending.wait(&mut soon()).unwrap();
    drop(incoming.take().unwrap());
    assert!(memory == data);
}

#[test]
fn goodbye_comes_after_everything_that_was_sent() {
    let pair = Pair::new(&Options::default());
    for number in 0..100 {
        pair.client.send(number, &[body(1000)]).unwrap();
    }
    pair.client.close();
    for number in 0..100 {
        assert_eq!(pair.receive().kind, number);
    }
    let end = pair.server.next(&mut soon()).unwrap_err();
    assert!(matches!(end, NetError::Ended(PairEnd::Goodbye)), "{end}");
}

#[test]
fn waiting_has_a_deadline() {
    let pair = Pair::new(&Options::default());
    let result = pair.server.next(&mut never());
    assert!(matches!(result, Err(NetError::Timeout)));
}

#[test]
fn batches_arrive_and_wait_for_their_receiver() {
    let pair = Pair::new(&Options::default());
    let message = body(1024);
    let receiver = std::thread::spawn(move || {
        let mut received = Vec::new();
        while received.len() < 50_000 {
            let incoming = pair.server.next(&mut soon()).unwrap();
            received.push(incoming.take().unwrap().frames[0].len());
            let mut more = Vec::new();
            pair.server.take_small(1000, &mut more);
            received.extend(more.iter().map(|object| object.frames[0].len()));
        }
        received
    });
    let messages = (0..50_000).map(|_| (1, message.as_ref()));
    pair.client.send_many(messages, &mut soon()).unwrap();
    assert!(
        receiver
            .join()
            .unwrap()
            .iter()
            .all(|length| *length == 1024)
    );
}

#[test]
fn what_a_cancelled_object_leaves_is_not_received() {
    let pair = Pair::new(&Options::default());
    let first = pair.client.send(1, &[body(64 << 20)]).unwrap();
    let second = pair.client.send(2, &[body(100)]).unwrap();
    first.cancel();
    assert!(first.wait(&mut soon()).is_err());
    second.wait(&mut soon()).unwrap();
    // Whoever claimed the first before it was cancelled is told so; nobody gets it.
    let kind = loop {
        let incoming = pair.server.next(&mut soon()).unwrap();
        incoming.accept(Vec::new()).unwrap();
        match incoming.wait(&mut soon()) {
            Ok(()) => break incoming.take().unwrap().kind,
            Err(NetError::Failed(Failure::Cancelled)) => {}
            Err(other) => panic!("{other}"),
        }
    };
    assert_eq!(kind, 2);
}
