//! Several processes, of one application and of several.

use treadle_security::certs::create;
use treadle_shuffle_client::local::{Master, Server, ServerSpec};
use treadle_shuffle_client::{Codec, Error, Kind, Options, Receipt, Service, Spec};

use crate::support::{
    APPLICATION, Servers, alone, compare, connect, expected, options, register, soon, unhex,
    write_all,
};

#[test]
fn one_process_writes_and_ends_and_another_one_commits_and_reads() {
    let servers = Servers::new();
    let (_a, _b) = (servers.start("a"), servers.start("b"));
    let service = servers.connect();
    let shuffle = register(&service, 4, 8);
    assert_eq!(shuffle.copies(), 2);
    let mut writer = servers.writer(&shuffle);
    let said = writer.says();
    writer.kill();
    let receipts = said
        .split(' ')
        .map(|hex| Receipt::from_bytes(&unhex(hex)).unwrap());
    let receipts: Vec<Receipt> = receipts.collect();
    let maps: Vec<(u32, u64)> = receipts.iter().map(|r| (r.map(), r.rows())).collect();
    assert_eq!(maps, [(0, 1000), (1, 0), (2, 1000), (3, 1000)]);
    let generation = shuffle.commit(&receipts, &mut soon()).unwrap();
    compare(&shuffle, generation);
    shuffle.finish(&mut soon()).unwrap();
}

#[test]
fn another_application_reads_what_it_knows_the_number_of_and_cannot_end_it() {
    let servers = Servers::new();
    let (_a, _b) = (servers.start("a"), servers.start("b"));
    let service = servers.connect();
    let shuffle = register(&service, 3, 4);
    let generation = shuffle.commit(&write_all(&shuffle), &mut soon()).unwrap();
    let stranger = connect(&servers.master.address(), APPLICATION + 1);
    let attached = stranger.attach(shuffle.number(), &mut soon()).unwrap();
    assert_eq!((attached.name(), attached.maps()), ("numbers", 3));
    compare(&attached, generation);
    let refused = attached.finish(&mut soon()).unwrap_err();
    assert!(matches!(refused, Error::Refused { .. }), "{refused:?}");
    compare(&shuffle, generation);
}

#[test]
fn several_readers_share_a_partition_by_its_maps() {
    let servers = Servers::new();
    let (_a, _b) = (servers.start("a"), servers.start("b"));
    let service = servers.connect();
    let shuffle = register(&service, 6, 2);
    let generation = shuffle.commit(&write_all(&shuffle), &mut soon()).unwrap();
    for maps in [0..2, 2..6, 3..3] {
        let reader = shuffle.reader(generation);
        let rows = reader.read_maps(1, maps.clone(), &mut soon()).unwrap();
        let found = rows.with_maps().map(|(map, row)| (map, row.to_vec()));
        assert!(found.eq(expected(1, maps, 2)));
    }
}

#[test]
fn rows_of_a_fixed_width_and_compressed_ones_come_back_with_the_note() {
    let servers = Servers::new();
    let (_a, _b) = (servers.start("a"), servers.start("b"));
    let service = servers.connect();
    for codec in [None, Some(Codec::Lz4), Some(Codec::Zstd)] {
        let mut spec = Spec::new(1, 3)
            .kind(Kind::Fixed(8))
            .note("numbers of 8 bytes");
        if let Some(codec) = codec {
            spec = spec.compressed(codec);
        }
        let shuffle = service.register(&spec, &mut soon()).unwrap();
        let mut writer = shuffle.writer(0);
        for number in 0..10_000_u64 {
            writer
                .write((number % 3) as u32, &number.to_le_bytes())
                .unwrap();
        }
        assert_eq!(writer.rows(), 10_000);
        let receipt = writer.finish(&mut soon()).unwrap();
        assert_eq!((receipt.rows(), receipt.bytes()), (10_000, 80_000));
        let generation = shuffle.commit(&[receipt], &mut soon()).unwrap();
        let attached = service.attach(shuffle.number(), &mut soon()).unwrap();
        assert_eq!((attached.kind(), attached.codec()), (Kind::Fixed(8), codec));
        assert_eq!(&attached.note()[..], b"numbers of 8 bytes");
        let rows = attached.reader(generation).read(2, &mut soon()).unwrap();
        let numbers = rows
            .iter()
            .map(|row| u64::from_le_bytes(row.try_into().unwrap()));
        assert!(numbers.eq((2..10_000).step_by(3)));
    }
}

#[test]
fn with_the_master_of_the_service_a_shuffle_outlives_who_registered_it() {
    let servers = Servers::new();
    let (_a, _b) = (servers.start("a"), servers.start("b"));
    let of = |application| -> Options { options(application).own_master(false) };
    let address = servers.master.address();
    let first = Service::connect(&address, of(1), &mut soon()).unwrap();
    let second = Service::connect(&address, of(1), &mut soon()).unwrap();
    let shuffle = register(&first, 3, 4);
    let generation = shuffle.commit(&write_all(&shuffle), &mut soon()).unwrap();
    let number = shuffle.number();
    first.close();
    let gone = shuffle.reader(generation).read(0, &mut soon()).unwrap_err();
    assert!(matches!(gone, Error::Gone { .. }), "{gone:?}");
    compare(&second.attach(number, &mut soon()).unwrap(), generation);
}

#[test]
fn servers_of_a_list_are_used_by_applications_of_one_process_each() {
    let servers = Servers::new();
    let (a, b) = (servers.start("a"), servers.start("b"));
    let list = format!("static:{},{}", a.address, b.address);
    let service = Service::connect(&list, alone(), &mut soon()).unwrap();
    let shuffle = register(&service, 3, 4);
    let generation = shuffle.commit(&write_all(&shuffle), &mut soon()).unwrap();
    compare(&shuffle, generation);
    compare(
        &service.attach(shuffle.number(), &mut soon()).unwrap(),
        generation,
    );
    let other = Service::connect(&list, alone(), &mut soon()).unwrap();
    let none = other.attach(shuffle.number(), &mut soon()).unwrap_err();
    assert!(
        none.to_string().contains("has no masters of applications"),
        "{none}"
    );
}

#[test]
#[ignore = "tests/cluster/test_shuffle_registries.py has registries"]
fn processes_of_one_application_find_one_master_in_a_registry() {
    let url = std::env::var("TREADLE_TEST_REGISTRY").unwrap();
    let connect = |options| Service::connect(&url, options, &mut soon()).unwrap();
    let of = || Options::new().application(u64::from(std::process::id()));
    let (first, second, other) = (connect(of()), connect(of()), connect(Options::new()));
    let shuffle = register(&first, 3, 4);
    let number = shuffle.number();
    let written = write_all(&second.attach(number, &mut soon()).unwrap());
    let generation = shuffle.commit(&written, &mut soon()).unwrap();
    compare(&other.attach(number, &mut soon()).unwrap(), generation);
    let ended = other.attach(number ^ (1 << 62), &mut soon()).unwrap_err();
    assert!(matches!(ended, Error::Refused { .. }), "{ended:?}");
    // The next one has a master before a session could end: the first has said that it ends.
    first.close();
    second.close();
    let shuffle = register(&connect(of()), 3, 4);
    let generation = shuffle.commit(&write_all(&shuffle), &mut soon()).unwrap();
    compare(&shuffle, generation);
}

#[test]
fn with_certificates_everything_is_encrypted_and_others_are_refused() {
    let certificates = tempfile::tempdir().unwrap();
    let directory = certificates.path();
    create(directory, &["node".into()], 10, false).unwrap();
    let of = |name| directory.join(name).to_str().unwrap().to_owned();
    let options = || {
        Options::new()
            .application(1)
            .tls(of("ca.pem"), of("node.pem"), of("node-key.pem"))
    };
    let master = Master::start(&options()).unwrap();
    let address = master.address();
    assert!(address.starts_with("treadle+tls://"));
    let spec = ServerSpec::new("a", directory.join("a"));
    let _server = Server::start(&address, spec, &options(), &mut soon()).unwrap();
    let service = Service::connect(&address, options(), &mut soon()).unwrap();
    let shuffle = register(&service, 3, 4);
    let generation = shuffle.commit(&write_all(&shuffle), &mut soon()).unwrap();
    compare(&shuffle, generation);
    let plain = Options::new()
        .application(2)
        .secret("what the processes of a cluster share")
        .unwrap();
    let refused = Service::connect(&address, plain, &mut soon()).unwrap_err();
    assert!(
        refused.to_string().contains("needs certificates"),
        "{refused}"
    );
}
