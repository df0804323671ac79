//! What the fuzz target calls: any bytes as a message between a member and the master.

use prost::Message;

use crate::wire::{
    Answer, Call, Govern, Hello, Met, Register, Room, Servers, Welcome, What, decode, flat, runs,
};

/// Takes a message apart, and packs what it held again.
///
/// # Panics
/// When a decoder breaks its word.
pub fn service(bytes: &[u8]) {
    again::<Hello>(bytes);
    again::<Room>(bytes);
    again::<Welcome>(bytes);
    again::<Met>(bytes);
    again::<Govern>(bytes);
    again::<Servers>(bytes);
    if let Some(call) = again::<Call>(bytes)
        && let Some(What::Register(register)) = call.what
    {
        sets(&register);
    }
    if let Some(answer) = again::<Answer>(bytes) {
        set(&answer.again);
        answer.about.iter().for_each(sets);
    }
}

fn again<M: Message + Default + PartialEq>(bytes: &[u8]) -> Option<M> {
    let message = decode::<M>(bytes).ok()?;
    let packed = message.encode_to_vec();
    assert!(decode::<M>(&packed).is_ok_and(|again| again == message));
    Some(message)
}

fn sets(register: &Register) {
    set(&register.outputs);
}

fn set(ranges: &[u64]) {
    if let Some(set) = runs(ranges) {
        assert_eq!(runs(&flat(&set)), Some(set));
    }
}

#[cfg(test)]
#[macro_use]
#[path = "../../../../fuzz/kept.rs"]
#[allow(unreachable_pub, reason = "it is a module of several crates' tests")]
mod kept;

#[cfg(test)]
mod tests {
    use crate::wire::{
        Answer, Call, Claim, Counted, Govern, Hello, Met, Register, Room, Server, Servers, Welcome,
        What,
    };
    use prost::Message;

    /// One of each kind.
    fn seeds() -> Vec<(&'static str, Vec<u8>)> {
        let room = Room {
            free: 1 << 30,
            held: 12,
            waiting: 3,
            is_full: true,
            rate: 40_000_000,
            age: 2,
        };
        let register = Register {
            name: "sort".into(),
            maps: 4,
            partitions: 9,
            copies: 2,
            note: "i8".into(),
            outputs: vec![0, 3, 5, 9],
            committed: Some(Counted {
                rows: 5,
                bytes: 40,
                digest: u64::MAX,
            }),
            expected: 1 << 40,
        };
        let call = |what| Call {
            number: 7,
            what: Some(what),
        };
        let hello = Hello {
            name: "a".into(),
            address: "treadle://127.0.0.1:9".into(),
            domain: "rack".into(),
            weight: 2,
            application: u64::MAX,
            version: "1".into(),
            priority: 3,
            room: Some(room),
            newest: 3,
            oldest: 1,
            rack: "r/7".into(),
            host_kind: "ssd".into(),
            store: 1 << 60,
        };
        let answer = Answer {
            number: 7,
            refused: "no".into(),
            shuffle: 8,
            about: Some(register.clone()),
            again: vec![1, 2],
            differs: true,
            domains: 3,
            text: "{}".into(),
            committed: register.committed,
            restarted: 4,
            last_committed: Some(0),
        };
        let welcome = Welcome {
            id: 5,
            refused: String::new(),
            protocol: 2,
            timeout_ms: 15_000,
            master: 1 << 30,
            lease_ms: 60_000,
        };
        let govern = Govern {
            name: "a".into(),
            version: "1".into(),
            newest: 3,
            oldest: 2,
            application: Some(0),
        };
        let server = Server {
            name: "a".into(),
            address: "treadle://127.0.0.1:9".into(),
            domain: "rack".into(),
            weight: 2,
            version: "1".into(),
            newest: 3,
            oldest: 2,
            room: Some(room),
            id: 5,
            is_leaving: true,
        };
        let servers = Servers {
            servers: vec![server],
        };
        let claim = Claim {
            application: 7,
            address: "treadle://127.0.0.1:8".into(),
            master: 1 << 30,
        };
        let met = Met {
            id: 6,
            address: "treadle://127.0.0.1:9".into(),
            protocol: 3,
        };
        let calls = [
            ("register", What::Register(register)),
            ("end", What::End(8)),
            ("about", What::About(8)),
            ("drain", What::Drain("a".into())),
            ("state", What::State(true)),
            ("records", What::Records(true)),
            ("servers", What::Servers(true)),
            ("claim", What::Claim(claim)),
            ("master", What::Master(1 << 30)),
            ("ended", What::Ended("[]".into())),
        ];
        let calls = calls.map(|(name, what)| (name, call(what).encode_to_vec()));
        let mut all = vec![
            ("hello", hello.encode_to_vec()),
            ("room", room.encode_to_vec()),
            ("welcome", welcome.encode_to_vec()),
            ("met", met.encode_to_vec()),
            ("govern", govern.encode_to_vec()),
            ("list", servers.encode_to_vec()),
            ("answer", answer.encode_to_vec()),
        ];
        all.extend(calls);
        all
    }

    kept!(service, seeds);
}
