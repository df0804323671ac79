//! Compiles the wire schema without a system `protoc`.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let proto = "../../../proto";
    println!("cargo::rerun-if-changed={proto}/shuffle.proto");
    let files = protox::compile(["shuffle.proto"], [proto])?;
    // Views of the message, not copies.
    prost_build::Config::new().bytes(["."]).compile_fds(files)?;
    Ok(())
}
