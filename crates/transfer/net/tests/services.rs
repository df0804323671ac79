//! Where connections for a service live. Beside `lanes.rs`, which counts this process's threads.

mod support;

use bytes::Bytes;
use support::{secret, soon};
use treadle_net::{Lane, Listener, Offer, Options, Peer};

#[test]
fn connections_for_a_service_live_in_its_lane() {
    const SERVICE: u32 = 7;
    let lane = Lane::attended().unwrap();
    let offers = [
        Offer {
            service: SERVICE,
            name: "seven",
            lane: Some(lane.clone()),
        },
        Offer {
            service: SERVICE + 1,
            name: "eight",
            lane: None,
        },
    ];
    let listening = Options {
        secret: Some(secret()),
        services: offers.to_vec(),
        ..Options::default()
    };
    let listener = Listener::bind(&"127.0.0.1:0".parse().unwrap(), &listening).unwrap();
    let dial = |service| {
        let dialling = Options {
            secret: Some(secret()),
            service,
            ..Options::default()
        };
        Peer::connect(listener.address(), &dialling, &mut soon())
    };
    let open = |service| {
        let client = dial(service).unwrap();
        let server = listener.accept(&mut soon()).unwrap();
        assert_eq!((client.service(), server.service()), (service, service));
        (client, server)
    };
    let (theirs, served) = open(SERVICE);
    let (others, other) = open(SERVICE + 1);
    let refused = dial(SERVICE + 2).unwrap_err().to_string();
    assert!(
        refused.contains("it serves only seven, eight, and not service 9"),
        "{refused}"
    );
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
