//! HTTP API -> front door.

fn main() -> anyhow::Result<()> {
    lambda::run::run::<lambda::door::Door>()
}
