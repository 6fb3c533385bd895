/* A plugin library: loading it is all that the stand-in of TensorRT asks for. */
int stand_in_plugin = 1;
