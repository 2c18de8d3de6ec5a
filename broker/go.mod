module github.com/pgoutbox/outbox/broker

go 1.26.0
