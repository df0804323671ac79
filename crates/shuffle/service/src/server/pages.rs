//! The pages of a server.

use std::sync::Arc;

use serde_json::{Value as Json, json};
use treadle_host::pages::{Content, Options as Pages, Page, PageServer, Refusals, Text};
use treadle_security::secret;
use treadle_shuffle_node::Stats;

use crate::page::{About, refusals, serve};
use crate::server::{ServerOptions, ShuffleServer, devices};
use crate::{ServiceError, config};

const REFUSALS: Refusals = refusals!("treadle shuffle-server", "shuffle server");

/// What the counts of a plane are called.
fn counts(stats: &Stats) -> [(&'static str, &'static str, u64); 14] {
    [
        ("pushed_bytes_total", "counter", stats.pushed),
        ("copied_bytes_total", "counter", stats.copied),
        ("stored_bytes_total", "counter", stats.stored),
        ("spilled_bytes_total", "counter", stats.spilled),
        ("loaded_bytes_total", "counter", stats.loaded),
        ("transfers_total", "counter", stats.transfers),
        ("reads_total", "counter", stats.reads),
        ("throttled_reads_total", "counter", stats.throttled),
        ("resident_bytes", "gauge", stats.resident),
        ("held_bytes", "gauge", stats.held),
        ("disk_bytes", "gauge", stats.on_disk),
        ("remote_bytes", "gauge", stats.remote),
        ("intake_bytes_per_second", "gauge", stats.intake.rate),
        ("in_flight_bytes", "gauge", stats.in_flight),
    ]
}

/// Serves them.
///
/// # Errors
/// The port is taken, or the system has no more threads or descriptors.
pub(super) fn pages(
    http: Pages,
    options: &ServerOptions,
    server: &ShuffleServer,
) -> Result<PageServer, ServiceError> {
    let (plane, registration) = (server.plane().clone(), Arc::clone(&server.registration));
    let metrics = move || -> Text {
        let stats = plane.stats();
        let is_registered = u64::from(registration.trouble().is_none());
        let of_devices = devices::metrics(&plane.devices());
        Box::new(move || {
            let registered = ("registered", "gauge", is_registered);
            let all = counts(&stats).into_iter().chain([registered]);
            let lines = all.map(|(name, kind, value)| {
                let name = format!("treadle_shuffle_{name}");
                format!("# TYPE {name} {kind}\n{name} {value}\n")
            });
            let text: String = lines.chain([of_devices]).collect();
            Content::new("text/plain; version=0.0.4", text)
        })
    };
    let metrics = Page {
        path: "/metrics",
        is_open: false,
        ask: Box::new(move |_, reply| reply(metrics())),
    };
    let state = Arc::new(state(options, server));
    let shown = Arc::clone(&state);
    let service = move || {
        let mut shown = shown();
        shown["role"] = "server".into();
        // As the master names them. A script has no integers of 64 bits.
        for device in shown["devices"].as_array_mut().into_iter().flatten() {
            let applications = device["applications"].as_array_mut();
            for one in applications.into_iter().flatten() {
                if let Some(number) = one["application"].as_u64() {
                    one["application"] = format!("{number:016x}").into();
                }
            }
        }
        shown
    };
    let about = About {
        address: server.address().to_string(),
        id: secret::hex(&secret::random::<8>()),
    };
    let state = Page {
        path: "/json/state",
        is_open: false,
        ask: Box::new(move |_, reply| {
            let state = state();
            reply(Box::new(move || {
                Content::new("application/json", state.to_string())
            }));
        }),
    };
    serve(http, about, REFUSALS, service, [metrics, state])
}

/// What is known of a server, as JSON.
fn state(
    options: &ServerOptions,
    server: &ShuffleServer,
) -> impl Fn() -> Json + Send + Sync + use<> {
    let (name, domain) = (options.name.clone(), options.domain.clone());
    let directories: Vec<String> = options
        .directories
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let remote = options
        .remote
        .as_ref()
        .map(|(location, _)| location.to_string());
    let (rack, host_kind) = (options.rack.clone(), options.host_kind.clone());
    let memory = options.memory;
    let (address, plane) = (server.address().to_string(), server.plane().clone());
    let (registration, links) = (Arc::clone(&server.registration), Arc::clone(&server.links));
    move || {
        let stats = plane.stats();
        let counts = counts(&stats).map(|(name, _, value)| (name.to_string(), json!(value)));
        json!({
            "name": name,
            "address": address,
            "registry": registration.location(),
            "not_registered": registration.trouble(),
            "domain": domain,
            "rack": rack,
            "host_kind": host_kind,
            "directories": directories,
            "devices": devices::state(&plane.devices()),
            "remote": remote,
            "memory_limit": memory,
            "leaving": links.is_leaving(),
            "masters": links.masters(),
            "counts": serde_json::Map::from_iter(counts),
            "split_bytes": config().split,
        })
    }
}
