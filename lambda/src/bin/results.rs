//! results queue -> table, callbacks.

fn main() -> anyhow::Result<()> {
    lambda::run::run::<lambda::results::Results>()
}
