//! callback queue and schedule -> callbacks.

fn main() -> anyhow::Result<()> {
    lambda::run::run::<lambda::deliver::Deliver>()
}
