module gpuscaler.io/tests/model/releases/extract

go 1.22
