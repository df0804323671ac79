//! What is refused, and by which name.

use std::time::Duration;

use treadle_shuffle_client::source::{
    Allocate, Arena, Column, Failure, Field, Format, Input, Integer, Partitions, Runs, Source,
    Transfer, Wanted, gather,
};
use treadle_shuffle_client::{
    Attempt, Error, Generation, Kind, Options, Receipt, Service, Spec, Wait,
};

use crate::support::{Servers, alone, options, register, soon, write, write_all};

fn invalid(result: Result<impl std::fmt::Debug, Error>, text: &str) {
    match result.unwrap_err() {
        Error::Invalid { at, reason } => {
            assert!(reason.contains(text), "{at}: {reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn who_has_another_secret_or_another_address_is_refused() {
    let servers = Servers::new();
    let address = servers.master.address();
    for own_master in [false, true] {
        let other = Options::new()
            .application(1)
            .secret("another secret, as long")
            .unwrap();
        let refused = Service::connect(&address, other.own_master(own_master), &mut soon());
        let error = refused.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert!(error.to_string().contains("secret"), "{error}");
    }
    let nobody = Service::connect("127.0.0.1:1", options(1), &mut soon());
    assert!(
        matches!(nobody, Err(Error::Unreachable { .. })),
        "{nobody:?}"
    );
    let elsewhere = Service::connect("192.0.2.1:7", options(1).own_master(false), &mut soon());
    assert!(elsewhere.unwrap_err().to_string().contains("has no TLS"));
    invalid(
        Service::connect(&address, options(1).priority(0), &mut soon()),
        "a priority of 0",
    );
    let none = Service::connect("http://localhost:7", options(1), &mut soon());
    assert!(none.unwrap_err().to_string().contains("is no registry"));
}

#[test]
fn a_list_of_servers_has_no_masters_and_a_registry_that_nobody_has_is_named() {
    let list = "static:127.0.0.1:1";
    invalid(
        Service::connect(list, options(1), &mut soon()),
        "leave application() out",
    );
    invalid(
        Service::connect(list, alone().own_master(false), &mut soon()),
        "has servers, and is no master",
    );
    invalid(
        Service::connect("zk://a", options(1), &mut soon()),
        "write zk://a/treadle",
    );
    let wait = &mut Wait::within(Duration::from_millis(200));
    let error = Service::connect("etcd://127.0.0.1:1/treadle", options(1), wait).unwrap_err();
    assert!(error.to_string().contains("etcd"), "{error}");
    assert!(matches!(error, Error::Registry { .. }), "{error:?}");
}

#[test]
fn rows_that_the_shuffle_does_not_have_are_refused_and_nothing_is_added() {
    let servers = Servers::new();
    let _a = servers.start("a");
    let service = servers.connect();
    let shuffle = register(&service, 2, 4);
    assert_eq!(shuffle.copies(), 1);
    let mut writer = shuffle.writer(0);
    invalid(
        writer.write(4, b"row"),
        "for partition 4: there are 4, from 0 on",
    );
    assert_eq!(writer.rows(), 0);
    invalid(
        shuffle.writer(2).finish(&mut soon()),
        "there are 2 maps, from 0 on",
    );
    let fixed = Spec::new(1, 1).kind(Kind::Fixed(4));
    let fixed = service.register(&fixed, &mut soon()).unwrap();
    invalid(
        fixed.writer(0).write(0, b"row"),
        "has 3 bytes: rows of this shuffle have 4",
    );
    invalid(service.register(&Spec::new(0, 1), &mut soon()), "0 maps");
}

#[test]
fn receipts_are_one_for_each_map_or_the_commit_says_which_is_not() {
    let servers = Servers::new();
    let _a = servers.start("a");
    let service = servers.connect();
    let shuffle = register(&service, 3, 4);
    let receipts = write_all(&shuffle);
    for wrong in [&receipts[..2], &[&receipts[..], &receipts[..1]].concat()] {
        let error = shuffle.commit(wrong, &mut soon()).unwrap_err();
        assert!(matches!(error, Error::Receipts { .. }), "{error:?}");
    }
    let bytes = receipts[0].to_bytes();
    assert_eq!(Receipt::from_bytes(&bytes).unwrap(), receipts[0]);
    invalid(Receipt::from_bytes(&bytes[..bytes.len() - 1]), "");
    shuffle.commit(&receipts, &mut soon()).unwrap();
}

#[test]
fn what_is_not_committed_or_not_there_cannot_be_read() {
    let servers = Servers::new();
    let _a = servers.start("a");
    let service = servers.connect();
    let shuffle = register(&service, 1, 4);
    let read = |generation: u32, partition| {
        let reader = shuffle.reader(Generation(generation));
        reader.read(partition, &mut soon())
    };
    match read(1, 0) {
        Err(Error::NotCommitted {
            committed: None, ..
        }) => {}
        other => panic!("{other:?}"),
    }
    let receipt = write(&shuffle, 0, false);
    let Generation(generation) = shuffle.commit(&[receipt], &mut soon()).unwrap();
    match read(generation + 1, 0) {
        Err(Error::NotCommitted { committed, .. }) => {
            assert_eq!(committed, Some(Generation(generation)));
        }
        other => panic!("{other:?}"),
    }
    invalid(read(generation, 4), "there are 4 partitions");
    let reader = shuffle.reader(Generation(generation));
    invalid(
        reader.read_maps(0, 0..2, &mut soon()),
        "maps 0 to 2: there are 1",
    );
}

#[test]
fn after_its_end_a_shuffle_takes_and_gives_nothing() {
    let servers = Servers::new();
    let _a = servers.start("a");
    let service = servers.connect();
    let shuffle = register(&service, 1, 4);
    let receipt = write(&shuffle, 0, false);
    let generation = shuffle
        .commit(std::slice::from_ref(&receipt), &mut soon())
        .unwrap();
    let attached = service.attach(shuffle.number(), &mut soon()).unwrap();
    shuffle.finish(&mut soon()).unwrap();
    let reader = attached.reader(generation);
    for error in [
        attached.writer(0).finish(&mut soon()).unwrap_err(),
        attached.commit(&[receipt], &mut soon()).unwrap_err(),
        reader.read(0, &mut soon()).unwrap_err(),
        service.attach(attached.number(), &mut soon()).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
    }
}

/// One record, for partition 0.
struct Record;

impl Source for Record {
    fn gather(
        &self,
        transfer: Transfer,
        groups: &[Wanted],
        allocate: &Allocate<'_>,
    ) -> Result<Vec<Arena>, Failure> {
        let offsets = [0_i64, 6].map(i64::to_ne_bytes).concat();
        let record = Column::Bytes {
            offsets: &offsets,
            data: b"record",
            nulls: None,
        };
        let input = Input {
            format: &Format::new(vec![Field::Bytes]),
            columns: &[record],
            partitions: &place(),
            note: &[],
        };
        let gathered = gather(input, transfer, groups, allocate);
        gathered.map_err(|error| Failure::Source(Box::new(error)))
    }

    fn count_in(&self, partitions: &mut dyn Iterator<Item = &Runs>) -> usize {
        place().count_in(partitions)
    }
}

fn place() -> Partitions {
    Partitions::read(&[0], 1, Integer::U8, 1, 1).unwrap()
}

#[test]
fn rows_of_another_kind_than_the_shuffle_has_are_an_error_that_names_the_map() {
    let servers = Servers::new();
    let _a = servers.start("a");
    let service = servers.connect();
    // A record of 6 bytes has 14 here, which are 2 rows of 7.
    for width in [3, 7] {
        let spec = Spec::new(1, 1).kind(Kind::Fixed(width));
        let fixed = service.register(&spec, &mut soon()).unwrap();
        let receipt = fixed
            .raw()
            .push(0, Attempt::default(), &Record, &mut soon());
        let generation = fixed.commit(&[receipt.unwrap()], &mut soon()).unwrap();
        let error = fixed.reader(generation).read(0, &mut soon()).unwrap_err();
        assert!(matches!(error, Error::DamagedRows { .. }), "{error:?}");
        assert!(
            error
                .to_string()
                .contains("rows of map 0 are of another kind"),
            "{error}"
        );
    }
}
