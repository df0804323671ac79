//! The files that `treadle certs` makes, and that nodes can use them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use treadle_security::certs::{CertsError, create};
use treadle_security::tls::{PeerName, Tls, TlsError, TlsOptions};

fn names(nodes: &[&str]) -> Vec<String> {
    nodes.iter().map(|node| (*node).to_owned()).collect()
}

fn contents(directory: &Path) -> BTreeMap<String, String> {
    fs::read_dir(directory)
        .unwrap()
        .map(|entry| {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            (name, fs::read_to_string(entry.path()).unwrap())
        })
        .collect()
}

/// Takes a connection between the two as far as it goes; the first error of either side.
fn connect(client: &TlsOptions, server: &TlsOptions) -> io::Result<()> {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    here.set_nonblocking(true).unwrap();
    there.set_nonblocking(true).unwrap();
    let mut client = Tls::client(client.client_config().unwrap()).unwrap();
    let mut server = Tls::server(server.server_config().unwrap()).unwrap();
    for _ in 0..100 {
        client.flush(&mut here)?;
        server.flush(&mut there)?;
        if !client.is_handshaking() && !server.is_handshaking() {
            return Ok(());
        }
    }
    panic!("the handshake goes round in circles");
}

#[test]
fn nodes_of_one_directory_trust_each_other_by_any_of_their_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/certs");
    create(&path, &names(&["alpha", "beta.example"]), 365, false).unwrap();
    let alpha = TlsOptions::from_prefix(path.join("alpha"));
    let mut beta = TlsOptions::from_prefix(path.join("beta.example"));
    connect(&alpha, &beta).unwrap();
    connect(&beta, &alpha).unwrap();
    for name in ["alpha", "localhost", "127.0.0.1", "::1"] {
        beta.peer_name = PeerName::Named(name.to_owned());
        connect(&beta, &alpha).unwrap();
        connect(&alpha, &beta).unwrap();
    }
    beta.peer_name = PeerName::Named("gamma".to_owned());
    let refused = connect(&beta, &alpha).unwrap_err();
    assert!(
        refused.to_string().contains("the name of a node"),
        "{refused}"
    );
    let refused = connect(&alpha, &beta).unwrap_err();
    assert!(
        refused.to_string().contains("the name of a node"),
        "{refused}"
    );
}

#[test]
fn the_files_are_those_that_are_reported_and_keys_are_private() {
    let directory = tempfile::tempdir().unwrap();
    let created = create(directory.path(), &names(&["node"]), 1, false).unwrap();
    assert!(created.new_ca);
    let mut reported: Vec<_> = created
        .files
        .iter()
        .map(|path| path.file_name().unwrap().to_str().unwrap())
        .collect();
    reported.sort_unstable();
    assert_eq!(
        reported,
        ["ca-key.pem", "ca.pem", "node-key.pem", "node.pem"]
    );
    assert!(contents(directory.path()).keys().eq(reported));
    for file in created.files {
        let mode = fs::metadata(&file).unwrap().permissions().mode() & 0o777;
        let is_key = file.to_str().unwrap().ends_with("-key.pem");
        assert_eq!(mode & 0o077 == 0, is_key, "{mode:o} {}", file.display());
    }
}

#[test]
fn a_ca_that_is_there_signs_the_nodes_that_come_later() {
    let directory = tempfile::tempdir().unwrap();
    create(directory.path(), &names(&["first"]), 365, false).unwrap();
    let before = contents(directory.path());
    let created = create(directory.path(), &names(&["second"]), 365, false).unwrap();
    assert!(!created.new_ca);
    assert_eq!(created.files.len(), 2);
    let after = contents(directory.path());
    assert!(before.iter().all(|(name, text)| after[name] == *text));
    let first = TlsOptions::from_prefix(directory.path().join("first"));
    let second = TlsOptions::from_prefix(directory.path().join("second"));
    connect(&first, &second).unwrap();
}

#[test]
fn what_is_there_is_replaced_only_where_that_was_asked_for() {
    let directory = tempfile::tempdir().unwrap();
    let nodes = names(&["node"]);
    create(directory.path(), &nodes, 365, false).unwrap();
    let before = contents(directory.path());

    let error = create(directory.path(), &names(&["new", "node"]), 365, false).unwrap_err();
    assert!(matches!(&error, CertsError::Exists(path) if path.ends_with("node.pem")));
    assert_eq!(contents(directory.path()), before);

    create(directory.path(), &nodes, 365, true).unwrap();
    let after = contents(directory.path());
    for file in ["ca.pem", "ca-key.pem"] {
        assert_eq!(after[file], before[file]);
    }
    for file in ["node.pem", "node-key.pem"] {
        assert_ne!(after[file], before[file]);
    }
    assert_eq!(after.len(), 4);
}

#[test]
fn a_ca_that_is_not_whole_or_not_a_pair_is_refused_by_name() {
    for missing in ["ca.pem", "ca-key.pem"] {
        let directory = tempfile::tempdir().unwrap();
        create(directory.path(), &names(&["a"]), 365, false).unwrap();
        fs::remove_file(directory.path().join(missing)).unwrap();
        let error = create(directory.path(), &names(&["b"]), 365, false).unwrap_err();
        assert!(matches!(&error, CertsError::HalfCa(path) if path.ends_with(missing)));
    }
    let directory = tempfile::tempdir().unwrap();
    let other = tempfile::tempdir().unwrap();
    create(directory.path(), &names(&["a"]), 365, false).unwrap();
    create(other.path(), &names(&["a"]), 365, false).unwrap();
    fs::copy(other.path().join("ca.pem"), directory.path().join("ca.pem")).unwrap();
    let error = create(directory.path(), &names(&["b"]), 365, false).unwrap_err();
    assert!(
        matches!(&error, CertsError::Ca { path, .. } if path.ends_with("ca.pem")),
        "{error}"
    );
    assert!(!directory.path().join("b.pem").exists());

    fs::write(directory.path().join("ca-key.pem"), "no key").unwrap();
    let error = create(directory.path(), &names(&["b"]), 365, false).unwrap_err();
    assert!(error.to_string().contains("ca-key.pem"), "{error}");
}

#[test]
fn names_and_days_that_cannot_be_are_refused_before_anything_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("certs");
    for name in [
        "", "ca", "ca-key", "x-key", "../x", "a/b", ".a", "-a", "a..b", "a b", "ü",
    ] {
        let error = create(&path, &names(&["good", name]), 365, false).unwrap_err();
        assert!(
            matches!(&error, CertsError::Name(named) if named == name),
            "{error}"
        );
    }
    let error = create(&path, &names(&["a", "a"]), 365, false).unwrap_err();
    assert!(matches!(error, CertsError::Twice(_)));
    assert!(matches!(
        create(&path, &[], 365, false),
        Err(CertsError::NoNodes)
    ));
    for days in [0, 3651, u32::MAX] {
        let error = create(&path, &names(&["a"]), days, false).unwrap_err();
        assert!(matches!(error, CertsError::Days(_)));
    }
    assert!(!path.exists());
    create(
        &path,
        &names(&["localhost", "10.0.0.1", "a_b"]),
        3650,
        false,
    )
    .unwrap();
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    let error = create(&file.join("certs"), &names(&["a"]), 365, false).unwrap_err();
    assert!(
        error.to_string().contains(file.to_str().unwrap()),
        "{error}"
    );
}

#[test]
fn options_name_the_file_that_is_wrong() {
    let directory = tempfile::tempdir().unwrap();
    let missing = TlsOptions::from_prefix(directory.path().join("node"));
    let error = missing.server_config().unwrap_err();
    assert!(
        matches!(&error, TlsError::Read { path, .. } if path.ends_with("ca.pem")),
        "{error}"
    );

    create(directory.path(), &names(&["a", "b"]), 365, false).unwrap();
    let file = |name: &str| directory.path().join(name);
    let mixed = TlsOptions::new(file("ca.pem"), file("a.pem"), file("b-key.pem"));
    let error = mixed.client_config().unwrap_err().to_string();
    assert!(
        error.contains("a.pem") && error.contains("b-key.pem"),
        "{error}"
    );

    let swapped = TlsOptions::new(file("ca.pem"), file("a-key.pem"), file("a-key.pem"));
    let error = swapped.client_config().unwrap_err().to_string();
    assert!(
        error.contains("no certificate in") && error.contains("a-key.pem"),
        "{error}"
    );

    let text = |name: &str| fs::read_to_string(file(name)).unwrap();
    let inline = TlsOptions::new(text("ca.pem"), text("a.pem"), text("a-key.pem"));
    assert!(!format!("{inline:?}").contains("BEGIN"));
    connect(&inline, &TlsOptions::from_prefix(file("b"))).unwrap();

    let keyless = TlsOptions::new(text("ca.pem"), text("a.pem"), text("a.pem"));
    let error = keyless.server_config().unwrap_err().to_string();
    assert!(error.contains("no private key"), "{error}");
}
