use super::*;

#[test]
fn the_certificate_of_another_ca_is_refused_by_both_sides() {
    let (ours, theirs) = (Ca::new(), Ca::new());
    let mut pair = pair(&theirs.node(NODE_NAME, 1), &ours.node(NODE_NAME, 1));
    let (client, server) = pair.refusals();
    assert_eq!(client.kind(), io::ErrorKind::PermissionDenied);
    assert!(
        client.to_string().contains("not signed by this node's CA"),
        "{client}"
    );
    assert_eq!(server.kind(), io::ErrorKind::PermissionDenied, "{server}");
    assert!(
        server
            .to_string()
            .contains("refuses this node's certificate"),
        "{server}"
    );
    // The reason stays.
    let again = write(&mut pair.client, &mut pair.here, b"x").unwrap_err();
    assert_eq!(again.to_string(), client.to_string());
}

#[test]
fn a_client_of_another_ca_that_trusts_the_server_is_refused() {
    let (ours, theirs) = (Ca::new(), Ca::new());
    let mut stranger = theirs.node(NODE_NAME, 1);
    stranger.ca = Pem::Text(ours.0.pem());
    let (client, server) = pair(&stranger, &ours.node(NODE_NAME, 1)).refusals();
    assert!(
        client
            .to_string()
            .contains("refuses this node's certificate"),
        "{client}"
    );
    assert!(
        server.to_string().contains("not signed by this node's CA"),
        "{server}"
    );
}

#[test]
fn a_client_without_a_certificate_is_refused() {
    let ca = Ca::new();
    let mut roots = RootCertStore::empty();
    roots.add(ca.0.der().clone()).unwrap();
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let (here, there) = unix_pair();
    let mut pair = Pair {
        client: Tls::client(Arc::new(config)).unwrap(),
        server: Tls::server(ca.node(NODE_NAME, 1).server_config().unwrap()).unwrap(),
        here,
        there,
    };
    let (client, server) = pair.refusals();
    assert_eq!(server.kind(), io::ErrorKind::PermissionDenied);
    assert!(
        server.to_string().contains("showed no certificate"),
        "{server}"
    );
    assert!(
        client
            .to_string()
            .contains("refuses this node's certificate"),
        "{client}"
    );
}

#[test]
fn an_expired_certificate_is_refused_on_either_side() {
    let ca = Ca::new();
    let (valid, expired) = (ca.node(NODE_NAME, 1), ca.node(NODE_NAME, -1));
    let (client, _) = pair(&valid, &expired).refusals();
    assert!(client.to_string().contains("has expired"), "{client}");
    let (_, server) = pair(&expired, &valid).refusals();
    assert!(server.to_string().contains("has expired"), "{server}");
}

#[test]
fn a_certificate_of_the_ca_for_something_else_is_refused_unless_any_will_do() {
    let ca = Ca::new();
    let (node, mut other) = (ca.node(NODE_NAME, 1), ca.node("printer.example", 1));
    let (client, _) = pair(&node, &other).refusals();
    assert!(
        client.to_string().contains("the name of a node"),
        "{client}"
    );
    let (_, server) = pair(&other, &node).refusals();
    assert!(
        server.to_string().contains("the name of a node"),
        "{server}"
    );

    other.peer_name = PeerName::Any;
    let mut pair = pair(&other, &other);
    pair.shake_hands().unwrap();
    let shown = pair.client.connection.peer_certificates();
    assert!(shown.is_some());
    assert_eq!(shown, pair.server.connection.peer_certificates());
}

#[test]
fn both_ends_know_their_channel_and_no_two_are_the_same() {
    let node = Ca::new().node(NODE_NAME, 1);
    let mut one = pair(&node, &node);
    assert_eq!(one.client.binding(), None);
    one.shake_hands().unwrap();
    assert!(one.client.binding().is_some());
    assert_eq!(one.client.binding(), one.server.binding());
    let mut other = pair(&node, &node);
    other.shake_hands().unwrap();
    assert_ne!(one.client.binding(), other.client.binding());
}

#[test]
fn other_versions_and_cipher_suites_are_not_offered() {
    let node = Ca::new().node(NODE_NAME, 1);
    let suites = |provider: &Arc<rustls::crypto::CryptoProvider>| {
        let names = provider.cipher_suites.iter().map(|suite| suite.suite());
        names.collect::<Vec<_>>()
    };
    let expected = [rustls::CipherSuite::TLS13_AES_128_GCM_SHA256];
    let client: Arc<ClientConfig> = node.client_config().unwrap();
    let server: Arc<ServerConfig> = node.server_config().unwrap();
    assert_eq!(suites(client.crypto_provider()), expected);
    assert_eq!(suites(server.crypto_provider()), expected);
}

#[test]
fn a_prefix_names_three_files() {
    let options = TlsOptions::from_prefix(Path::new("certs/node.1"));
    assert_eq!(options.ca, Pem::File("certs/ca.pem".into()));
    assert_eq!(options.cert, Pem::File("certs/node.1.pem".into()));
    assert_eq!(options.key, Pem::File("certs/node.1-key.pem".into()));
}
