//! The same cases against each kind of registry, with real servers. `make test-registries` fetches ZooKeeper and etcd;
//! without them the static list is tested.

mod cases;
mod certificates;
mod child;
mod claims;
mod etcd;
mod fixed;
mod large;
mod process;
mod proxy;
mod watcher;
mod zookeeper;

use certificates::Certificates;
use treadle_shuffle_registry::{Config, Credentials, Location, Registry, open};

/// A kind of registry that is another server.
trait Kind: Sized {
    /// Starts one without data.
    fn start() -> Self;

    /// Where it is reached; through a proxy, if there is one.
    fn location(&self, port: Option<u16>) -> Location;

    fn port(&self) -> u16;

    /// Ends it as `kill -9` does.
    fn kill(&mut self);

    /// Starts it again, at the same port, with its data or without.
    fn restart(&mut self, forgets: bool);

    /// Writes nodes below the registry's path, which belong to no session.
    fn write(&self, nodes: &[(String, Vec<u8>)]);

    /// Starts one that takes clients with a certificate of `certificates` alone.
    fn start_with_tls(certificates: &Certificates) -> Self;

    /// From now on a user and a password are needed. Returns right ones, and wrong ones.
    fn protect(&self) -> [Credentials; 2];
}

/// Times that make tests short.
fn config() -> Config {
    use std::time::Duration;
    Config {
        first_pause: Duration::from_millis(100),
        longest_pause: Duration::from_secs(1),
        session: Duration::from_secs(4),
        answer: Duration::from_secs(5),
        interruption: Duration::from_secs(5),
        linger: Duration::from_millis(500),
        grace: Duration::from_secs(8),
        shortest_refresh: Duration::from_millis(100),
        longest_refresh: Duration::from_secs(1),
        hold: Duration::from_secs(4),
        longest_hold: Duration::from_secs(4),
        ..Config::default()
    }
}

fn connect(location: &Location) -> Box<dyn Registry> {
    connect_as(location, &Credentials::default())
}

fn connect_as(location: &Location, credentials: &Credentials) -> Box<dyn Registry> {
    open(location, credentials, &config()).expect("the registry can be used")
}

/// Each case against a kind.
macro_rules! conformance {
    ($kind:ty: $($case:ident),* $(,)?) => {$(
        #[test]
        #[ignore = "needs a registry's server: make test-registries"]
        fn $case() {
            $crate::cases::$case::<$kind>();
        }
    )*};
}
pub(crate) use conformance;

/// All cases.
macro_rules! all_cases {
    ($kind:ty) => {
        $crate::conformance! { $kind:
            a_server_registers_refreshes_and_withdraws,
            a_server_that_is_killed_leaves_when_its_session_ends,
            a_server_that_stood_still_comes_back,
            a_master_that_is_cut_off_keeps_its_list_and_learns_what_it_missed,
            a_server_that_is_cut_off_comes_back,
            of_two_servers_with_one_name_the_later_counts,
            a_server_that_flaps_is_held_back,
            a_registry_that_is_away_stops_nothing,
            a_registry_that_has_forgotten_all_is_filled_again,
            an_application_has_one_master,
            the_master_of_an_application_stays_it_while_the_registry_is_away,
            what_is_no_entry_is_skipped_and_named,
            wrong_credentials_are_said,
            with_tls_both_sides_show_a_certificate,
            ten_thousand_servers_are_listed,
        }
    };
}
pub(crate) use all_cases;
