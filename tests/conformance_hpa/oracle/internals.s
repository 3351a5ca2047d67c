// Empty: its presence lets horizontal.go declare a function whose body is in another package.
