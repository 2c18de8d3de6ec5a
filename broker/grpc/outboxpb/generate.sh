#!/bin/sh
# Writes outbox.pb.go and outbox_grpc.pb.go. Needs python3 with venv, and go; everything else it fetches into a
# folder of its own, in the versions named here.
set -eu
cd "$(dirname "$0")"
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools/python"
"$tools/python/bin/pip" --quiet --disable-pip-version-check install grpcio-tools==1.76.0
GOBIN="$tools" go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.12
GOBIN="$tools" go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.0
PATH="$tools:$PATH" "$tools/python/bin/python" -m grpc_tools.protoc -I. \
	--go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative outbox.proto
