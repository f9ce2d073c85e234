"""What runs tasks: Spark, and processes beside it. The only part that knows Spark is `spark`."""
