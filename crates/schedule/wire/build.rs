//! Compiles the wire schema without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "../../../proto";
    for schema in ["cluster.proto", "data.proto", "shuffle.proto"] {
        println!("cargo::rerun-if-changed={proto}/{schema}");
    }
    let files = protox::compile(["cluster.proto", "data.proto"], [proto])?;
    prost_build::Config::new()
        // Views of the packet, not copies.
        .bytes(["."])
        // What the shuffle plane says is generated in its crate.
        .extern_path(".treadle.shuffle", "::treadle_shuffle_wire::proto")
        .compile_fds(files)?;
    Ok(())
}
