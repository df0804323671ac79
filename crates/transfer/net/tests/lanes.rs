//! Connections on drivers of their own.

mod support;

use bytes::Bytes;
use support::{eventually, secret, soon};
use treadle_net::{Lane, Listener, Options, Peer, Poller};

fn options(lane: &Lane) -> Options {
    Options {
        secret: Some(secret()),
        lane: Some(lane.clone()),
        ..Options::default()
    }
}

fn driving_threads() -> usize {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|name| name.trim() == "treadle-net")
        .count()
}

#[test]
fn objects_pass_between_lanes_whose_threads_end_with_them() {
    // The drivers that all share, which stripes use, are not counted.
    drop(Poller::new().unwrap());
    // A thread names itself when it starts to run.
    eventually("the shared driver's thread runs", || driving_threads() > 0);
    let before = driving_threads();
    let (here, there) = (Lane::new().unwrap(), Lane::new().unwrap());
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &options(&there)).unwrap();
    let client = Peer::connect(listener.address(), &options(&here), &mut soon()).unwrap();
    let server = listener.accept(&mut soon()).unwrap();
    let poller = Poller::on(&there);
    server.watch(&poller, 3);
    let large = Bytes::from(vec![5u8; 3 << 20]);
    for (kind, body) in [(1, Bytes::from_static(b"small")), (2, large)] {
        let sending = client.send(kind, std::slice::from_ref(&body)).unwrap();
        let incoming = loop {
            let turn = poller.next(&mut soon()).unwrap();
            assert_eq!(turn.key(), 3);
            if let Some(incoming) = server.try_next().unwrap() {
                break incoming;
            }
        };
        incoming.accept(Vec::new()).unwrap();
        incoming.wait(&mut soon()).unwrap();
        let received = incoming.take().unwrap();
        assert_eq!(received.kind, kind);
        assert!(received.frames[0].as_slice() == body);
        sending.wait(&mut soon()).unwrap();
    }
    eventually("the lanes' threads run", || driving_threads() == before + 2);
    client.close();
    drop((client, server, listener, poller, here, there));
    eventually("the lanes' threads end", || driving_threads() == before);
}
