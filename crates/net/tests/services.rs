//! Where connections for a service live. Beside `lanes.rs`, which counts this process's threads.

mod support;

use bytes::Bytes;
use support::{secret, soon};
use treadle_net::{Lane, Listener, Options, Peer};

#[test]
fn connections_for_a_service_live_in_its_lane() {
    const SERVICE: u32 = 7;
    let lane = Lane::attended().unwrap();
    let listening = Options {
        secret: Some(secret()),
        service_lanes: vec![(SERVICE, lane.clone())],
        ..Options::default()
    };
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &listening).unwrap();
    let dial = |service| {
        let dialling = Options {
            secret: Some(secret()),
            service,
            ..Options::default()
        };
        let client = Peer::connect(listener.address(), &dialling, &mut soon()).unwrap();
        (client, listener.accept(&mut soon()).unwrap())
    };
    let (theirs, served) = dial(SERVICE);
    let (others, other) = dial(SERVICE + 1);
    assert!(served.lives_in(&lane) && !other.lives_in(&lane));
    for (client, server) in [(&theirs, &served), (&others, &other)] {
        let body = Bytes::from(vec![9u8; 3 << 20]);
        let sending = client.send(4, std::slice::from_ref(&body)).unwrap();
        let incoming = server.next(&mut soon()).unwrap();
        incoming.accept(Vec::new()).unwrap();
        incoming.wait(&mut soon()).unwrap();
        let received = incoming.take().unwrap();
        assert!(received.frames[0].as_slice() == body);
        sending.wait(&mut soon()).unwrap();
    }
}
