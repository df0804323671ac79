//! The files of the page, made by `make page` and part of this program, and its views one by one.

use bytes::Bytes;
use treadle_host::pages::{Content, Page};

/// A file of the folder `page/dist`.
macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../../page/dist/",
            $name
        ))
    };
}

/// Paths, types and contents. The first one says where the others are, and nothing of the cluster: but who
/// sees it is told to bring the token.
const FILES: [(&str, &str, &[u8]); 3] = [
    ("/", "text/html; charset=utf-8", file!("index.html")),
    (
        "/assets/page.js",
        "text/javascript; charset=utf-8",
        file!("assets/page.js"),
    ),
    (
        "/assets/page.css",
        "text/css; charset=utf-8",
        file!("assets/page.css"),
    ),
];

/// Views that are shown alone, in a frame of somebody's: their paths, which the page reads, and what
/// JupyterLab's Dask extension calls them.
const ALONE: [(&str, &str); 6] = [
    ("/individual-overview", "Overview"),
    ("/individual-stream", "Task Stream"),
    ("/individual-groups", "Groups"),
    ("/individual-workers", "Workers"),
    ("/individual-transfers", "Transfers"),
    ("/individual-shuffles", "Shuffles"),
];
/// What that extension asks for.
const PLOTS: &str = "/individual-plots.json";

/// The pages of the files.
pub(crate) fn pages() -> impl Iterator<Item = Page> {
    let files = FILES.into_iter().map(|(path, kind, bytes)| Page {
        path,
        is_open: path != "/",
        ask: Box::new(move |_, reply| {
            reply(Box::new(move || Content {
                lasts: path != "/",
                ..Content::new(kind, Bytes::from_static(bytes))
            }));
        }),
    });
    let alone = ALONE.into_iter().map(|(path, _)| Page {
        path,
        is_open: false,
        ask: Box::new(|_, reply| {
            let (_, kind, bytes) = FILES[0];
            reply(Box::new(move || Content {
                in_frames: true,
                ..Content::new(kind, Bytes::from_static(bytes))
            }));
        }),
    });
    let plots = Page {
        path: PLOTS,
        is_open: false,
        ask: Box::new(|_, reply| {
            let plots = ALONE.into_iter();
            let plots = plots.map(|(path, name)| (format!("Individual {name}"), path.into()));
            let plots: serde_json::Map<String, serde_json::Value> = plots.collect();
            let text = serde_json::Value::from(plots).to_string();
            reply(Box::new(|| Content::new("application/json", text)));
        }),
    };
    files.chain(alone).chain([plots])
}
